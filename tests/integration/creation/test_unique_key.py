"""get_or_create_entity() by a unique key: two concurrent callers get the same locked row."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    mapped_column,
    relationship,
    selectinload,
    sessionmaker,
    undefer,
)

from sa_doclock import (
    AsyncLockingSession,
    CheckedOut,
    DocumentGate,
    LockingScopedSession,
    LockingSession,
    LockMisuse,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    UnlockedWrite,
    UnsavedChanges,
    checkout_table,
    document,
    explain_lock,
    run_transaction,
)
from sa_doclock.testing import recorded_locks
from tests.integration.asyncio.drivers import DRIVERS, connected, in_a_loop, url_for
from tests.integration.creation.test_at_once import LEVELS, all_at_once
from tests.integration.creation.test_what_is_created import statements_of
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.rows import rows
from tests.support.waits import wait_until_blocked

CALLERS = 12
KEY = {"provider": "x", "number": "e1"}
ForUpdate, NoWait = LockOptions.ForUpdate, LockOptions.NoWait


class Base(DeclarativeBase):
    pass


@document(parts=("notes",), version=True, checkout=True)
class Event(Base):
    """An event of a provider's webhook; the database generates its primary key."""

    __tablename__ = "uk_event"
    id: Mapped[int] = mapped_column(primary_key=True)
    provider: Mapped[str] = mapped_column(sa.String(20))
    number: Mapped[str | None] = mapped_column("event_number", sa.String(20))
    token: Mapped[int | None]
    total: Mapped[int] = mapped_column(default=0)
    unit: Mapped[str] = mapped_column(sa.String(10), server_default="piece")
    version: Mapped[int] = mapped_column()
    notes: Mapped[list[Note]] = relationship(cascade="all, delete-orphan", order_by="Note.id")
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012
    __table_args__ = (
        sa.UniqueConstraint("provider", "event_number"),
        sa.Index("uk_event_token", "token", unique=True),
    )


class Note(Base):
    __tablename__ = "uk_note"
    id: Mapped[int] = mapped_column(primary_key=True)
    event_id: Mapped[int] = mapped_column(sa.ForeignKey("uk_event.id"))
    text: Mapped[str] = mapped_column(sa.String(20))


class Paper(Base):
    """The root of joined inheritance; each table has a key."""

    __tablename__ = "uk_paper"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(sa.String(10))
    code: Mapped[str] = mapped_column(sa.String(20), unique=True)
    total: Mapped[int] = mapped_column(default=0)
    __mapper_args__ = {"polymorphic_on": kind, "polymorphic_identity": "paper"}  # noqa: RUF012


class Bill(Paper):
    __tablename__ = "uk_bill"
    id: Mapped[int] = mapped_column(sa.ForeignKey("uk_paper.id"), primary_key=True)
    serial: Mapped[int] = mapped_column(unique=True)
    __mapper_args__ = {"polymorphic_identity": "bill"}  # noqa: RUF012


class Letter(Paper):
    """Single-table inheritance, with a column of its own in the root's table."""

    stamp: Mapped[int | None] = mapped_column(unique=True)
    __mapper_args__ = {"polymorphic_identity": "letter"}  # noqa: RUF012


checkouts = checkout_table(Base.metadata, "uk_checkouts")


@pytest.fixture
def database_of_events(database: Database) -> Database:
    database.create(Base.metadata)
    return database


@pytest.fixture
def make_engine(database_of_events: Database) -> Callable[..., sa.Engine]:
    waits = {"connect_args": {"timeout": 60}} if database_of_events.name == "sqlite" else {}
    return lambda **how: database_of_events.engine(pool_size=CALLERS, **waits, **how)


@pytest.fixture(params=[None, *LEVELS])
def sessions(
    request: pytest.FixtureRequest, database: Database, make_engine: Callable[..., sa.Engine]
) -> sessionmaker[LockingSession]:
    if request.param is not None and database.name == "sqlite":
        pytest.skip("SQLite has one level")
    level = {} if request.param is None else {"isolation_level": request.param}
    return sessionmaker(make_engine(**level), class_=LockingSession)


@pytest.fixture
def session(make_engine: Callable[..., sa.Engine]) -> Iterator[LockingSession]:
    with LockingSession(make_engine()) as session:
        yield session


@pytest.fixture
def other(make_engine: Callable[..., sa.Engine]) -> Iterator[LockingSession]:
    with LockingSession(make_engine()) as session:
        yield session


KEYS = [
    (Event, KEY, {}),
    (Event, {"token": "7"}, {"provider": "y"}),
    (Paper, {"code": "c1"}, {}),
    (Bill, {"code": "c1"}, {"serial": 1}),
    (Bill, {"serial": 5}, {"code": "c1"}),
    (Letter, {"stamp": 5}, {"code": "c1"}),
]


@pytest.mark.parametrize(("entity", "key", "defaults"), KEYS)
def test_twelve_at_once_get_one_row_and_no_error(
    sessions: sessionmaker[LockingSession], entity: Any, key: Any, defaults: Any
) -> None:
    def call() -> bool:
        with sessions.begin() as session:
            row, created = session.get_or_create_entity(
                entity, key, defaults=defaults, lock_timeout=20
            )
            row.total += 1
            return created

    assert sorted(all_at_once(CALLERS, call)) == [False] * (CALLERS - 1) + [True]
    with sessions() as session:
        assert session.scalars(sa.select(entity)).one().total == CALLERS


@pytest.mark.parametrize("in_savepoint", [False, True])
def test_callers_go_on_where_the_first_four_roll_back(
    sessions: sessionmaker[LockingSession], in_savepoint: bool
) -> None:
    undone = itertools.count()

    def call() -> bool:
        with sessions() as session:
            session.begin()
            savepoint = session.begin_nested() if in_savepoint else None
            row, created = session.get_or_create_entity(Event, KEY, lock_timeout=20)
            row.total += 1
            if created and next(undone) < 4:
                (savepoint or session).rollback()
            session.commit()
            return created

    assert sum(all_at_once(CALLERS, call)) == 5
    with sessions() as session:
        assert session.scalars(sa.select(Event)).one().total == CALLERS - 4


@in_a_loop
async def test_twelve_tasks_at_once(database_of_events: Database) -> None:
    async def call() -> bool:
        async with sessions() as session:
            event, created = await session.get_or_create_entity(
                Event, KEY, defaults=lambda: Event(notes=[Note(text="new")]), lock_timeout=20
            )
            event.total += 1
            await session.save_changes()
            return bool(created)

    url = url_for(database_of_events, DRIVERS[database_of_events.name][0])
    async with connected(url, pool_size=CALLERS) as engine:
        sessions: Any = async_sessionmaker(engine, class_=AsyncLockingSession)
        assert sum(await asyncio.gather(*(call() for _ in range(CALLERS)))) == 1
        async with sessions() as session:
            assert (await session.scalars(sa.select(Event))).one().total == CALLERS


@pytest.mark.parametrize("ends", ["commit", "rollback", "savepoint"])
@pytest.mark.parametrize("within", [False, True])
def test_the_second_waits_for_the_end_of_the_first(
    alice: Actor[LockingSession],
    bob: Actor[LockingSession],
    ends: str,
    within: bool,
) -> None:
    def create(session: LockingSession) -> None:
        session.begin()
        if ends == "savepoint":
            session.begin_nested()
        session.get_or_create_entity(Event, KEY, defaults={"total": 5})[0].total += 1
        session.flush()

    def ask(session: LockingSession) -> tuple[bool, int]:
        session.begin()
        if within:
            session.begin_nested()
        row, created = session.get_or_create_entity(Event, KEY, defaults={"total": 20})
        row.total += 1
        if within:
            session.get_nested_transaction().commit()  # type: ignore[union-attr]
        held = [*session.held_locks]
        session.commit()
        assert held == [(Event, (row.id,))]
        return created, row.total

    alice.does(create)
    asked = bob.starts(ask)
    wait_until_blocked(waiter=bob, holder=alice, step=asked)
    if ends == "savepoint":  # on PostgreSQL he waits for the end of the transaction anyway
        alice.does(lambda session: session.get_nested_transaction().rollback())  # type: ignore[union-attr]
    alice.does(lambda session: session.rollback() if ends == "rollback" else session.commit())
    assert asked.result() == ((False, 7) if ends == "commit" else (True, 21))


def test_what_it_holds_and_the_next_ask(session: LockingSession, other: LockingSession) -> None:
    event, created = session.get_or_create_entity(Event, KEY, defaults={"total": 1})
    assert (created, event.provider, event.number, event.unit) == (True, "x", "e1", "piece")
    assert dict(session.held_locks) == {(Event, (event.id,)): ForUpdate}
    assert statements_of(session, lambda: session.get_entity(Event, event.id, ForUpdate)) == []
    event.total = 9  # pending, and not lost
    assert session.get_or_create_entity(Event, KEY) == (event, False)
    assert event.total == 9
    session.save_changes()
    assert session.get_or_create_entity(Event, dict(reversed(KEY.items()))) == (event, False)
    assert event.total == 9
    with pytest.raises(LockNotAvailable):
        other.get_entity(Event, event.id, ForUpdate | NoWait)
    sent = statements_of(session, lambda: session.get_or_create_entity(Event, KEY))
    assert len(sent) == 1


def test_what_is_loaded_is_read_again(session: LockingSession, other: LockingSession) -> None:
    with other.begin():
        other.get_or_create_entity(Event, KEY, defaults={"total": 1})
    event = session.scalars(sa.select(Event)).one()
    assert (event.total, event.notes) == (1, [])
    session.commit()
    with other.begin():
        changed = other.get_or_create_entity(Event, KEY)[0]
        changed.notes.append(Note(text="by another"))
        changed.total = 2
    assert session.get_or_create_entity(Event, KEY) == (event, False)
    assert (event.total, [note.text for note in event.notes]) == (2, ["by another"])
    session.save_changes()
    event.total = 3
    with pytest.raises(UnsavedChanges):
        session.get_or_create_entity(Event, KEY)


def test_one_that_the_session_has_added_itself(session: LockingSession) -> None:
    added = Event(**KEY, total=4)
    session.add(added)
    assert session.get_or_create_entity(Event, KEY, defaults={"total": 5}) == (added, False)
    assert added.total == 4


@pytest.mark.parametrize("how", [{"lock_timeout": 0.2}, {"lock": ForUpdate | NoWait}])
@pytest.mark.parametrize("committed", [False, True])
def test_a_wait_that_is_too_long_names_the_row(
    session: LockingSession, other: LockingSession, how: dict[str, Any], committed: bool
) -> None:
    event = other.get_or_create_entity(Event, KEY)[0]
    if committed:
        other.save_changes()
        other.lock(event)
    with pytest.raises(LockNotAvailable, match=r"Event \{'provider': 'x', 'number': 'e1'\} FOR"):
        session.get_or_create_entity(Event, KEY, **how)
    assert not session.in_transaction()
    other.save_changes()
    assert session.get_or_create_entity(Event, KEY, **how)[1] is False


def test_an_error_names_the_class_that_was_asked_for(
    session: LockingSession, other: LockingSession
) -> None:
    """The lock is on the header's table, which is the root's."""
    how: dict[str, Any] = {"lock": ForUpdate | NoWait, "defaults": {"serial": 1}}
    other.get_or_create_entity(Bill, {"code": "c"}, **how)
    with pytest.raises(LockNotAvailable, match=r"Bill \{'code': 'c'\} FOR UPDATE NOWAIT"):
        session.get_or_create_entity(Bill, {"code": "c"}, **how)


def test_the_guard_and_the_version(session: LockingSession) -> None:
    with session.begin():
        session.add(Event(provider="y", number="1", notes=[Note(text="other")]))
    event = session.get_or_create_entity(
        Event, KEY, defaults=lambda: Event(notes=[Note(text="mine")])
    )[0]
    assert event.version == 1
    session.execute(sa.update(Note).where(Note.event_id == event.id).values(text="changed"))
    with pytest.raises(UnlockedWrite, match="Event"):
        session.execute(sa.update(Note).where(Note.text == "other").values(text="changed"))
    event.notes.append(Note(text="two"))
    session.save_changes()
    assert event.version == 3  # also raised by a statement that writes a part
    session.commit()
    with session.begin():
        session.get_or_create_entity(Event, KEY)[0].notes[0].text = "again"
    assert event.version == 4


def test_a_check_out_is_asked_for(make_engine: Callable[..., sa.Engine]) -> None:
    with LockingSession(make_engine(), checkouts=checkouts) as session:
        ident = session.get_or_create_entity(Event, KEY)[0].id
        session.commit()
        session.check_out(Event, ident, "ann", lease=timedelta(hours=1))
        session.commit()
        with pytest.raises(CheckedOut, match="ann"):
            session.get_or_create_entity(Event, KEY)


@pytest.mark.databases("postgresql")
def test_in_a_pipeline(make_engine: Callable[..., sa.Engine], other: LockingSession) -> None:
    with LockingSession(make_engine(), pipeline=True) as session:
        event, created = session.get_or_create_entity(Event, KEY, ForUpdate | LockOptions.NoKey)
        event.notes.append(Note(text="piped"))
        session.save_changes()
        assert session.get_or_create_entity(Event, KEY) == (event, False)
        with pytest.raises(LockNotAvailable):
            other.get_or_create_entity(Event, KEY, ForUpdate | NoWait)
        assert (created, [note.text for note in event.notes]) == (True, ["piped"])


def test_loader_options_and_no_autoflush(make_engine: Callable[..., sa.Engine]) -> None:
    with LockingSession(make_engine(), autoflush=False, expire_on_commit=False) as session:
        options = [selectinload(Event.notes)]
        for expected in (True, False):
            event, created = session.get_or_create_entity(Event, KEY, options=options)
            assert created is expected
            assert "notes" not in sa.inspect(event).unloaded
            session.save_changes()
        bill = [undefer(Bill.serial)]
        defaults = {"code": "c", "total": 1}
        for expected in (True, False):
            found, created = session.get_or_create_entity(
                Bill, {"serial": 1}, defaults=defaults, options=bill
            )
            assert (found.code, created) == ("c", expected)
            session.commit()
            session.expunge_all()


@pytest.mark.not_databases("sqlite")
def test_nothing_is_locked_in_autocommit(make_engine: Callable[..., sa.Engine]) -> None:
    with (
        LockingSession(make_engine(isolation_level="AUTOCOMMIT")) as session,
        pytest.raises(LockNotSupported, match="AUTOCOMMIT"),
    ):
        session.get_or_create_entity(Event, KEY)


def test_within_other_features(make_engine: Callable[..., sa.Engine]) -> None:
    engine = make_engine()
    gate = DocumentGate()
    factory = sessionmaker(engine, class_=LockingSession, gate=gate)
    with factory.begin() as session:
        paper = session.get_or_create_entity(Paper, {"code": "p"})[0]
        key = paper.id

    def book(session: LockingSession, paper: Paper) -> bool:
        paper.total += 1
        return session.get_or_create_entity(Event, KEY)[1]

    assert gate.run(factory, Paper, key, book) is True
    assert gate.run(factory, Paper, key, book) is False
    assert run_transaction(factory, lambda one: one.get_or_create_entity(Event, KEY)[1]) is False
    scoped = LockingScopedSession(factory)
    assert scoped.get_or_create_entity(Event, KEY)[1] is False
    scoped.remove()
    batch = sessionmaker(engine, class_=LockingSession, priority="batch")
    with recorded_locks() as records, batch() as session:
        assert session.get_or_create_entity(Event, {"token": 3}, defaults={"provider": "z"})[1]
        session.commit()
        assert session.get_or_create_entity(Event, {"token": 3})[1] is False
    assert {record.entity for record in records} == {Event}


def test_a_key_of_another_class_of_the_hierarchy(session: LockingSession) -> None:
    with session.begin():
        session.get_or_create_entity(Letter, {"code": "c"})
        letter, created = session.get_or_create_entity(Paper, {"code": "c"})
        assert (type(letter), created) == (Letter, False)
        with pytest.raises(IntegrityError):
            session.get_or_create_entity(Bill, {"code": "c"}, defaults={"serial": 1})
        assert session.get_or_create_entity(Bill, {"code": "d"}, defaults={"serial": 1})[1]


def test_a_constraint_that_the_database_does_not_have(session: LockingSession) -> None:
    class Own(DeclarativeBase):
        pass

    class Loose(Own):
        __tablename__ = "uk_note"
        id: Mapped[int] = mapped_column(primary_key=True)
        event_id: Mapped[int]
        text: Mapped[str] = mapped_column(sa.String(20), unique=True)

    with session.begin():
        session.add(Event(**KEY, notes=[Note(text="a"), Note(text="a")]))
    with pytest.raises(LockMisuse, match=r"Loose \{'text': 'a'\}: several rows .* constraint"):
        session.get_or_create_entity(Loose, {"text": "a"})
    assert not session.in_transaction()


class NotCreated(DeclarativeBase):
    pass


class Odd(NotCreated):
    """Columns that look like a key, but are not unique for every row at all times."""

    __tablename__ = "uk_odd"
    id: Mapped[int] = mapped_column(primary_key=True)
    some: Mapped[str] = mapped_column(sa.String(20))
    lower: Mapped[str] = mapped_column(sa.String(20))
    start: Mapped[str] = mapped_column(sa.String(20))
    late: Mapped[str] = mapped_column(sa.String(20))
    plain: Mapped[str] = mapped_column(sa.String(20), index=True)

    __table_args__ = (
        sa.Index("uk_odd_some", "some", unique=True, postgresql_where=sa.text("id > 1")),
        sa.Index("uk_odd_some_2", "some", unique=True, sqlite_where=sa.text("id > 1")),
        sa.Index("uk_odd_lower", sa.func.lower(lower), unique=True),
        sa.Index("uk_odd_start", "start", unique=True, mysql_length=3),
        sa.UniqueConstraint("late", deferrable=True, initially="DEFERRED"),
    )


@pytest.mark.databases("sqlite")
@rows("name", ["some", "lower", "start", "late", "plain"])
def test_what_is_no_key(session: LockingSession, name: str) -> None:
    with pytest.raises(ValueError, match=r"primary key is \(id\), and its unique keys are: none"):
        session.get_or_create_entity(Odd, {name: "a"})


LISTED = r"its primary key is \(id\), and its unique keys are: \(provider, number\); \(token\)$"


@pytest.mark.databases("sqlite")
@rows(
    ("key", "how", "error", "text"),
    [
        ({"provider": "x"}, {}, ValueError, LISTED),
        ({**KEY, "token": 1}, {}, ValueError, LISTED),
        ({**KEY, "id": 1}, {}, ValueError, LISTED),
        ({"provider": "x", "event_number": "e1"}, {}, ValueError, LISTED),
        ({Event.provider: "x", Event.number: "1"}, {}, ValueError, LISTED),
        ({"total": 1}, {}, ValueError, LISTED),
        ({}, {}, ValueError, LISTED),
        ({**KEY, "number": None}, {}, ValueError, "unique key with NULL names no row"),
        ({"token": None}, {}, ValueError, "unique key with NULL names no row"),
        ({"token": "a"}, {}, ValueError, "Event .*'token': 'a'.*: 'a' is not a number"),
        ({"token": Event.token}, {}, TypeError, "Event .*token"),
        ({"token": 1}, {"lock": LockOptions.SharedRead}, ValueError, "needs ForUpdate"),
        (
            KEY,
            {"defaults": {"number": "e2"}},
            ValueError,
            r"unique key \(provider, number\) \('x', 'e2'\), but",
        ),
        (
            KEY,
            {"defaults": lambda: Event(number="e2")},
            ValueError,
            r"\('x', 'e2'\), but the call asks for \('x', 'e1'\)",
        ),
        (KEY, {"defaults": {"no_such": 0}}, TypeError, "no_such"),
    ],
)
def test_what_it_refuses(
    session: LockingSession, key: Any, how: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        session.get_or_create_entity(Event, key, **how)
    assert not session.in_transaction()


@pytest.mark.databases("sqlite")
def test_defaults_that_contradict_a_row_that_is_there(session: LockingSession) -> None:
    with session.begin():
        session.get_or_create_entity(Event, KEY, defaults={"number": "e1"})
    with pytest.raises(ValueError, match="unique key"):
        session.get_or_create_entity(Event, KEY, defaults={"provider": "y"})


@pytest.mark.databases("sqlite")
def test_a_primary_key_as_a_mapping(session: LockingSession) -> None:
    event, created = session.get_or_create_entity(Event, {"id": 8}, defaults=KEY)
    assert (created, event.id, event.number) == (True, 8, "e1")
    assert session.get_or_create_entity(Event, KEY) == (event, False)


@pytest.mark.parametrize("how", [{}, {"lock_timeout": 20}])
def test_explain_lock_shows_what_is_sent(
    database: Database, make_engine: Callable[..., sa.Engine], how: dict[str, Any]
) -> None:
    level = {} if database.name == "sqlite" else {"isolation_level": "READ COMMITTED"}
    engine = make_engine(**level)
    with LockingSession(engine) as session:
        session.get_or_create_entity(Event, KEY)
        session.save_changes()
        session.get_or_create_entity(Bill, {"code": "c1"}, defaults={"serial": 1})
        session.save_changes()
        for entity, key in ((Event, KEY), (Bill, {"code": "c1"}), (Bill, {"serial": 1})):
            get = partial(session.get_or_create_entity, entity, key, **how)
            sent = [" ".join(one.split()) for one in statements_of(session, get)]
            session.rollback()
            explained = explain_lock(engine, entity, ForUpdate, key=tuple(key), **how)
            assert set(sent) <= set(explained.statements), entity
            if not how:
                assert sent == [*explained.statements], entity
            assert explained.rows
    with pytest.raises(ValueError, match="its unique keys are: "):
        explain_lock(engine, Event, ForUpdate, key=("provider",))
    with pytest.raises(LockNotSupported, match=r"no row with the unique key \(token\)"):
        explain_lock(engine, Event, ForUpdate, key=("token",))
    with pytest.raises(TypeError, match="key must be the attributes"):
        explain_lock(engine, Event, ForUpdate, key="token")
