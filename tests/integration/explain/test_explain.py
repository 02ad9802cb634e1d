"""explain_lock() shows a session's statements, without waiting or making another session wait."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, registry, relationship

from sa_doclock import (
    LockExplanation,
    LockingSession,
    LockNotSupported,
    LockOptions,
    explain_lock,
)
from tests.integration.locking.steps import locks, roll_back
from tests.integration.timeouts.ways import Wire, over
from tests.support.actors import Actor
from tests.support.databases import PIPELINED, Database
from tests.support.models import Lease, Order, Voucher

pytestmark = pytest.mark.quick

FOR_UPDATE, SHARED = LockOptions.ForUpdate, LockOptions.SharedRead


Actors = Actor[LockingSession]
KINDS = [
    FOR_UPDATE,
    FOR_UPDATE | LockOptions.NoWait,
    FOR_UPDATE | LockOptions.NoKey,
    SHARED,
    LockOptions.SnapshotRead,
    LockOptions.NoLock,
]


@contextmanager
def sent_by(engine: sa.Engine) -> Iterator[list[str]]:
    """Collect the statements that reach the driver."""
    sent: list[str] = []

    def do_execute(_cursor: object, statement: str, *_: object) -> None:
        sent.append(" ".join(statement.split()))

    names = ("do_execute", "do_execute_no_params")
    for name in names:
        sa.event.listen(engine, name, do_execute)
    yield sent
    for name in names:
        sa.event.remove(engine, name, do_execute)


def really_sent(
    engine: sa.Engine, entity: type[Any], ident: Any, lock: LockOptions, **how: Any
) -> list[str]:
    for _ in range(2):  # some queries run once per engine
        with LockingSession(engine) as session, sent_by(engine) as sent:
            assert session.get_document(entity, ident, lock, **how) is not None
    return sent


@pytest.mark.parametrize("lock", KINDS, ids=str)
@pytest.mark.parametrize(("entity", "ident"), [(Order, 1), (Lease, 1), (Voucher, (2024, 1))])
def test_the_statements_are_those_of_a_session(
    engine: sa.Engine, entity: type[Any], ident: Any, lock: LockOptions
) -> None:
    reported = explain_lock(engine, entity, lock)
    assert without_pragmas(reported) == really_sent(engine, entity, ident, lock)


def without_pragmas(reported: LockExplanation) -> list[str]:
    """Return the statements without the PRAGMAs that the library sends past SQLAlchemy."""
    return [one for one in reported.statements if not one.startswith("PRAGMA busy_timeout")]


def test_with_a_limit_too(database: Database, engine: sa.Engine) -> None:
    reported = explain_lock(engine, Order, FOR_UPDATE, lock_timeout=0.3)
    really = really_sent(engine, Order, 1, FOR_UPDATE, lock_timeout=0.3)
    statements = without_pragmas(reported)
    assert len(reported.statements) - len(statements) == (3 if database.name == "sqlite" else 0)
    if database.name == "postgresql":  # psycopg sends these two with the lock, without SQLAlchemy
        assert "'300ms'" in statements.pop(0)
        assert "doclock.lock_timeout" in statements.pop(1)
    assert statements == really


@pytest.mark.not_databases("sqlite")
def test_a_level_that_the_program_has_chosen(database: Database, documents: Database) -> None:
    assert documents is database
    level = {"isolation_level": "READ COMMITTED"}
    for engine in (database.engine(**level), database.engine().execution_options(**level)):
        reported = explain_lock(engine, Order, FOR_UPDATE)
        assert list(reported.statements) == really_sent(engine, Order, 1, FOR_UPDATE)
        assert reported.level == "READ COMMITTED"


@pytest.mark.parametrize("lock", [FOR_UPDATE, SHARED], ids=str)
def test_it_does_not_wait_for_a_holder_and_nobody_waits_for_it(
    alice: Actors, bob: Actors, engine: sa.Engine, lock: LockOptions
) -> None:
    alice.does(locks(Order, 1))
    reported = explain_lock(engine, Order, lock)  # a real lock would wait for alice
    alice.does(roll_back)
    assert reported.statements

    def explain_in_the_middle(session: LockingSession) -> None:
        # It holds nothing after it returns.
        explain_lock(session, Order, lock)
        session.get_one_entity(Order, 1, FOR_UPDATE | LockOptions.NoWait)

    bob.does(explain_in_the_middle)
    bob.does(roll_back)


@pytest.mark.not_databases("sqlite")
def test_what_a_server_says_about_it(database: Database, engine: sa.Engine) -> None:
    reported = explain_lock(engine, Order, FOR_UPDATE)
    assert (reported.entity, reported.lock, reported.database) == (Order, FOR_UPDATE, database.name)
    assert reported.level == "READ COMMITTED"
    assert reported.rows == ("the row of lk_order with this key: an exclusive lock",)
    assert any("UPDATE and DELETE" in one for one in reported.waits_for)
    text = str(reported)
    assert text.startswith(
        f"Order FOR UPDATE on {database.name}\nisolation level: READ COMMITTED\n"
    )
    assert "FOR UPDATE" in text.partition("sends:")[2]
    for part in (*reported.statements, *reported.rows, *reported.waits_for, *reported.notes):
        assert f"  {part}" in text


@pytest.mark.databases("postgresql")
def test_no_key_lets_rows_be_inserted_that_refer_to_it(engine: sa.Engine) -> None:
    refers = "INSERT and UPDATE of rows that refer to it by a foreign key"
    assert refers in explain_lock(engine, Order, FOR_UPDATE).waits_for
    assert refers not in explain_lock(engine, Order, FOR_UPDATE | LockOptions.NoKey).waits_for


def test_a_read_that_locks_nothing_says_so(engine: sa.Engine) -> None:
    reported = explain_lock(engine, Order, LockOptions.SnapshotRead)
    assert (reported.rows, reported.waits_for) == ((), ())
    assert "no row" in str(reported)
    assert "nobody" in str(reported)


@pytest.mark.databases("sqlite")
def test_sqlite_locks_the_file(engine: sa.Engine) -> None:
    reported = explain_lock(engine, Order, FOR_UPDATE)
    assert reported.level is None
    assert reported.rows == ("the write lock of the whole file",)
    assert reported.statements[0] == "BEGIN IMMEDIATE"


@pytest.mark.not_databases("sqlite")
def test_skip_locked_is_explained_for_a_set(engine: sa.Engine) -> None:
    reported = explain_lock(engine, Order, FOR_UPDATE | LockOptions.SkipLocked)
    assert any("SKIP LOCKED" in one for one in reported.statements)


@pytest.mark.databases("sqlite")
def test_what_the_database_cannot_is_refused_as_by_a_lock(engine: sa.Engine) -> None:
    with pytest.raises(LockNotSupported, match="nothing to skip"):
        explain_lock(engine, Order, FOR_UPDATE | LockOptions.SkipLocked)


class Base(DeclarativeBase):
    pass


class Crate(Base):
    __tablename__ = "ex_crate"
    label: Mapped[str] = mapped_column(sa.String(20), primary_key=True)
    items: Mapped[list[Item]] = relationship()


class Item(Base):
    __tablename__ = "ex_item"
    id: Mapped[int] = mapped_column(primary_key=True)
    crate_label: Mapped[str] = mapped_column(sa.ForeignKey("ex_crate.label"))


def test_an_empty_table(database: Database) -> None:
    database.create(Base.metadata)
    engine = database.engine()
    reported = explain_lock(engine, Crate, FOR_UPDATE)
    assert any("ex_crate" in one for one in reported.statements)
    assert not any("ex_item" in one for one in reported.statements)
    assert "the table has no rows" in reported.notes[-1]
    with engine.begin() as connection:
        connection.execute(sa.insert(Crate).values(label="a"))
    reported = explain_lock(engine, Crate, FOR_UPDATE)
    assert "ex_item" in reported.statements[-1]
    assert "the table has no rows" not in reported.notes[-1]


@pytest.mark.databases("mysql", "mariadb")
def test_a_table_without_row_locks_is_refused(database: Database) -> None:
    database.create(Base.metadata)
    with database.observer().connect() as connection:
        connection.exec_driver_sql("DROP TABLE ex_item")
        connection.exec_driver_sql("ALTER TABLE ex_crate ENGINE=MyISAM")
    with pytest.raises(LockNotSupported, match="MyISAM"):
        explain_lock(database.engine(), Crate, FOR_UPDATE)


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("sqlite://", Order, FOR_UPDATE), TypeError),
        ((None, object, FOR_UPDATE), TypeError),
        ((None, Order, 4), TypeError),
        ((None, Order, FOR_UPDATE | SHARED), ValueError),
    ],
)
def test_bad_arguments(
    engine: sa.Engine, arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    bind, *others = arguments
    with pytest.raises(error):
        explain_lock(bind or engine, *others)


@pytest.mark.databases("sqlite")
def test_a_limit_without_a_wait_is_refused(engine: sa.Engine) -> None:
    with pytest.raises(ValueError, match="never waits"):
        explain_lock(engine, Order, LockOptions.SnapshotRead, lock_timeout=1)


# --------------------------------------------------------------------------------------------------
# explain_lock() explains the lock of a class with any key, even if its table is empty.


class Season(enum.Enum):
    spring = 1


class Code(sa.TypeDecorator[str]):
    """A number in the database, ``"No. 12"`` in Python."""

    impl = sa.Integer
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> int | None:
        return None if value is None else int(value.removeprefix("No. "))

    def process_result_value(self, value: int | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else f"No. {value}"


KEYS: dict[str, tuple[Any, Any]] = {
    "uuid": (sa.Uuid(), uuid.UUID(int=1)),
    "uuid as text": (sa.Uuid(as_uuid=False), str(uuid.UUID(int=1))),
    "enum": (sa.Enum(Season), Season.spring),
    "date": (sa.Date(), dt.date(2024, 1, 2)),
    "datetime": (sa.DateTime(), dt.datetime(2024, 1, 2)),  # noqa: DTZ001
    "Decimal": (sa.Numeric(5, 2), Decimal(1)),
    "text": (sa.String(5), "a"),
    "TypeDecorator": (Code(), "No. 1"),
}


@pytest.mark.parametrize("name", KEYS)
def test_a_key_of_any_kind(database: Database, name: str) -> None:
    type_, value = KEYS[name]
    metadata = sa.MetaData()
    key = sa.Column("id", type_, primary_key=True, autoincrement=False)
    table = sa.Table(f"explained_{name.replace(' ', '_').lower()}", metadata, key)
    database.create(metadata)
    entity: Any = type("Explained", (), {})
    registry().map_imperatively(entity, table)
    engine = database.engine()
    if name == "TypeDecorator":
        with pytest.raises(LockNotSupported, match="add one row, and explain again"):
            explain_lock(engine, entity, LockOptions.ForUpdate)
        empty = None
    else:
        empty = explain_lock(engine, entity, LockOptions.ForUpdate)
    with engine.begin() as connection:
        connection.execute(table.insert().values(id=value))
    filled = explain_lock(engine, entity, LockOptions.ForUpdate)
    assert filled.statements
    # PostgreSQL checks a second time for a missing row.
    assert empty is None or set(empty.statements) == set(filled.statements)


# --------------------------------------------------------------------------------------------------
# explain_lock() reports as many round trips as a proxy in front of the server counts.

# The sessions of these tests choose explicitly whether they use a pipeline.
KINDS_ROUND_TRIPS = [
    FOR_UPDATE,
    FOR_UPDATE | LockOptions.NoWait,
    SHARED,
    LockOptions.SnapshotRead,
    LockOptions.NoLock,
]
ON_SERVERS = pytest.mark.databases("postgresql", "mysql", "mariadb")
Make = Callable[..., sa.Engine]


@pytest.fixture
def wire(documents: Database) -> Iterator[Wire]:
    """Run a proxy in front of the server."""
    url = sa.make_url(documents.url)
    wire = Wire(url.host or "127.0.0.1", url.port or {"postgresql": 5432}.get(documents.name, 3306))
    yield wire
    wire.close()


@pytest.fixture
def make(documents: Database, wire: Wire) -> Iterator[Make]:
    """Return a maker of engines with one connection each, through the proxy."""
    made: list[sa.Engine] = []
    through = sa.make_url(documents.url).set(host="127.0.0.1", port=wire.port)
    if documents.name == "postgresql":
        through = over(wire, documents.url)

    def make(**options: Any) -> sa.Engine:
        made.append(sa.create_engine(through, pool_size=1, max_overflow=0, **options))
        return made[-1]

    yield make
    for engine in made:
        engine.dispose()


def counted(
    wire: Wire, engine: sa.Engine, entity: type[Any], ident: Any, lock: LockOptions, **how: Any
) -> int:
    """Return the round trips of the second session; the first sends the queries that run once."""
    seconds, trips = how.pop("lock_timeout", None), []
    for _ in range(2):
        with LockingSession(engine, **how) as session:
            with wire.counting() as trips:
                found = session.get_document(entity, ident, lock, lock_timeout=seconds)
            assert found is not None
    return trips[0]


def check(wire: Wire, engine: sa.Engine, entity: type[Any], ident: Any, lock: LockOptions) -> None:
    reported = explain_lock(engine, entity, lock)
    assert reported.round_trips == counted(wire, engine, entity, ident, lock)
    if engine.dialect.driver == "psycopg":
        assert reported.pipelined_round_trips == counted(
            wire, engine, entity, ident, lock, pipeline=True
        )
    else:
        assert reported.pipelined_round_trips is None


@pytest.mark.not_databases(PIPELINED)
@ON_SERVERS
@pytest.mark.parametrize("lock", KINDS_ROUND_TRIPS, ids=str)
@pytest.mark.parametrize(("entity", "ident"), [(Order, 1), (Lease, 1), (Voucher, (2024, 1))])
def test_as_counted(
    make: Make, wire: Wire, entity: type[Any], ident: Any, lock: LockOptions
) -> None:
    check(wire, make(), entity, ident, lock)


@pytest.mark.not_databases(PIPELINED)
@ON_SERVERS
@pytest.mark.parametrize("lock", [FOR_UPDATE, LockOptions.SnapshotRead], ids=str)
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_at_a_level_of_the_engine(make: Make, wire: Wire, level: str, lock: LockOptions) -> None:
    check(wire, make(isolation_level=level), Order, 1, lock)


@pytest.mark.not_databases(PIPELINED)
@ON_SERVERS
@pytest.mark.parametrize("seconds", [0, 0.3, 2])
def test_with_a_limit(make: Make, wire: Wire, seconds: float) -> None:
    engine = make()
    reported = explain_lock(engine, Order, FOR_UPDATE, lock_timeout=seconds)
    how = {"lock_timeout": seconds}
    assert reported.round_trips == counted(wire, engine, Order, 1, FOR_UPDATE, **how)
    if reported.pipelined_round_trips is not None:
        trips = counted(wire, engine, Order, 1, FOR_UPDATE, pipeline=True, **how)
        assert reported.pipelined_round_trips == trips


@pytest.mark.not_databases(PIPELINED)
@pytest.mark.databases("sqlite")
def test_a_file_has_none(engine: sa.Engine) -> None:
    reported = explain_lock(engine, Order, FOR_UPDATE)
    assert (reported.round_trips, reported.pipelined_round_trips) == (0, None)
    assert "round trips: 0\n" in str(reported)


@pytest.mark.not_databases(PIPELINED)
@ON_SERVERS
def test_the_text_has_them(engine: sa.Engine) -> None:
    reported: LockExplanation = explain_lock(engine, Order, FOR_UPDATE)
    pipelined = "; 1 with pipeline=True" if engine.dialect.driver == "psycopg" else ""
    assert f"\nround trips: {reported.round_trips}{pipelined}\n" in str(reported)
