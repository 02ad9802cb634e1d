"""A session that locks nothing, used as programs use it, step by step."""

from __future__ import annotations

import gc
import inspect
import shutil
import textwrap
import tracemalloc
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import (
    Connection,
    create_engine,
    delete,
    event,
    exc,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.orm import Session, joinedload, scoped_session, selectinload, sessionmaker

from sa_doclock import LockingSession, LockOptions
from sa_doclock.core.transaction import LockContext
from tests.support.fresh_process import FreshProcesses
from tests.support.models import Customer, Invoice, Lease, Line, Order, Voucher
from tests.support.rows import rows


def _flush_and_commit(session: Session) -> None:
    session.add(Order(id=9, total=1, lines=[Line(id=9, name="x", value=1)]))
    session.flush()
    session.commit()


def _change_and_autoflush(session: Session) -> list[int]:
    session.get_one(Order, 1).total = 7
    return list(session.scalars(select(Order.total).order_by(Order.id)))


def _lazy_load(session: Session) -> list[int]:
    return [line.value for line in session.get_one(Order, 1).lines]


def _expire_and_refresh(session: Session) -> int:
    order = session.get_one(Order, 1)
    session.expire(order, ["total"])
    total = order.total
    session.refresh(order)
    return total + order.total


def _savepoints(session: Session) -> int:
    with session.begin():
        session.add(Customer(id=8, name="kept"))
        with session.begin_nested() as inner:
            session.add(Customer(id=9, name="lost"))
            session.flush()
            inner.rollback()
    return session.scalars(select(func.count()).select_from(Customer)).one()


def _merge_and_delete(session: Session) -> None:
    session.merge(Customer(id=2, name="Bea"))
    session.delete(session.get_one(Order, 1))
    session.commit()


def _bulk(session: Session) -> list[Any]:
    results: list[Any] = [
        session.execute(insert(Customer), [{"id": 6, "name": "f"}, {"id": 7, "name": "g"}]),
        session.execute(update(Customer).where(Customer.id > 5).values(name="h")),
        session.execute(delete(Customer).where(Customer.id == 7)),
    ]
    session.commit()
    return [result.rowcount for result in results[1:]]


def _violate_a_constraint(session: Session) -> str:
    session.begin()
    session.add(Customer(id=1, name="there is one"))
    try:
        session.flush()
    except exc.IntegrityError as error:
        first = str(error)
    try:
        session.execute(select(Customer))
    except exc.PendingRollbackError as error:
        second = str(error)
    session.rollback()
    return first + second


def _leave_by_an_exception(session: Session) -> None:
    try:
        with session.begin():
            session.add(Customer(id=9, name="lost"))
            session.flush()
            session.get_one(Customer, 99)
    except exc.NoResultFound:
        pass


def _refused(session: Session) -> list[str]:
    wrong: list[Any] = ["SELECT 1", None, 1, Order, []]
    return [_refusal(session, statement) for statement in wrong]


def _refusal(session: Session, statement: Any) -> str:
    try:
        session.execute(statement)
    except exc.ArgumentError as error:
        return str(error)
    return "none"


def _streams(session: Session) -> list[int]:
    orders = session.scalars(select(Order).order_by(Order.id), execution_options={"yield_per": 1})
    return [order.id for order in orders]


def _ends(end: Callable[[Session], None]) -> Callable[[Session], Any]:
    def use(session: Session) -> tuple[bool, bool]:
        order = session.get_one(Order, 1)
        end(session)
        return session.in_transaction(), order in session

    return use


def _from_statement(session: Session) -> list[int]:
    statement: Any = select(Order).from_statement(
        text("SELECT id, total FROM lk_order ORDER BY id")
    )
    return [order.total for order in session.scalars(statement)]


def _twice(session: Session) -> bool:
    return session.get(Order, 1) is session.get(Order, 1, populate_existing=True)


USES: Mapping[str, Callable[[Session], Any]] = {
    "get": lambda s: s.get_one(Order, 1).total,
    "get with options": lambda s: len(
        s.get_one(Order, 1, options=[selectinload(Order.lines)]).lines
    ),
    "get composite": lambda s: s.get_one(Voucher, {"year": 2024, "number": 1}).total,
    "get nothing": lambda s: s.get(Order, 99),
    "get with_for_update": lambda s: s.get_one(Order, 1, with_for_update=True).total,
    "get twice": _twice,
    "joined inheritance": lambda s: s.get_one(Lease, 1).total,
    "mapped join": lambda s: s.get_one(Invoice, 1).customer.name,
    "joinedload": lambda s: len(
        s.scalars(select(Order).options(joinedload(Order.lines))).unique().all()
    ),
    "distinct": lambda s: s.scalars(select(Line.order_id).distinct()).all(),
    "with_for_update": lambda s: s.scalars(select(Order.id).with_for_update()).all(),
    "from_statement": _from_statement,
    "Query": lambda s: s.query(Order).filter(Order.id > 1).count(),
    "text": lambda s: s.execute(text("SELECT 1 AS one")).mappings().all(),
    "scalar": lambda s: s.scalar(select(Order.total).where(Order.id == 1)),
    "scalar with parameters": lambda s: s.scalar(text("SELECT :x + 1"), {"x": 1}),
    "connection": lambda s: s.connection().exec_driver_sql("SELECT 1").scalar(),
    "flush, commit": _flush_and_commit,
    "change, autoflush": _change_and_autoflush,
    "lazy load": _lazy_load,
    "expire, refresh": _expire_and_refresh,
    "savepoints": _savepoints,
    "merge, delete": _merge_and_delete,
    "bulk": _bulk,
    "constraint": _violate_a_constraint,
    "exception": _leave_by_an_exception,
    "refused": _refused,
    "yield_per": _streams,
    "bulk_save_objects": lambda s: s.bulk_save_objects([Customer(id=5, name="e")]),
    "rollback": _ends(Session.rollback),
    "close": _ends(Session.close),
    "invalidate": _ends(Session.invalidate),
    "reset": _ends(Session.reset),
}


# --------------------------------------------------------------------------------------------------
# A LockingSession without locks is a Session: same SQL, results, errors and events.

Outcome = tuple[Any, list[str]]
OWN = {
    "check_in",
    "check_out",
    "checkout_of",
    "checkouts",
    "entity_set",
    "lock_key",
    "get_document",
    "get_documents",
    "get_entities",
    "get_entity",
    "get_one_document",
    "get_one_entity",
    "get_or_create_entity",
    "held_locks",
    "lock",
    "locked",
    "locked_document",
    "locked_documents",
    "on_commit",
    "release_locks",
    "renew",
    "save_changes",
    "take_over",
    "unguarded",
}


@pytest.fixture
def outcome(filled: Path, tmp_path: Path) -> Callable[..., Outcome]:
    """Use a session on a separate file; return its results and every statement sent."""

    def use(kind: type[Session], act: Callable[[Session], Any], **options: Any) -> Outcome:
        path = shutil.copy(filled, tmp_path / f"{kind.__name__}.db")
        engine = create_engine(f"sqlite:///{path}")
        event.listen(engine, "connect", lambda raw, _: raw.execute("PRAGMA synchronous = OFF"))
        sent: list[str] = []

        def note(_c: Connection, _cursor: object, sql: str, parameters: object, *_: object) -> None:
            sent.append(f"{sql} {parameters}")

        event.listen(engine, "before_cursor_execute", note)
        for what in ("begin", "commit", "rollback", "savepoint", "rollback_savepoint"):
            event.listen(engine, what, lambda *_, what=what: sent.append(f"({what})"))
        with kind(engine, **options) as session:
            came_out = act(session)
        engine.dispose()
        return came_out, sent

    return use


@pytest.mark.parametrize("act", USES.values(), ids=USES)
@rows("options", [{}, {"autoflush": False}, {"expire_on_commit": False}], ids=str)
def test_it_does_what_a_session_does(
    outcome: Callable[..., Outcome], act: Callable[[Session], Any], options: dict[str, Any]
) -> None:
    # On SQLite, an adopted with_for_update() begins the transaction with BEGIN IMMEDIATE.
    ours = outcome(LockingSession, act, adopt_for_update=False, **options)
    assert ours == outcome(Session, act, **options)


@pytest.mark.parametrize("lock", [LockOptions.None_, LockOptions.NoLock])
def test_get_entity_without_a_lock_is_get(
    outcome: Callable[..., Outcome], lock: LockOptions
) -> None:
    def use(session: Session, get: Callable[..., Any]) -> list[Any]:
        order = get(Order, 1)
        order.total = 7  # pending: neither flushed nor read again
        again = get(Order, 1)
        session.expire(get(Order, 2))
        with_lines = get(Order, 2, options=[selectinload(Order.lines)])
        return [again is order, order.total, len(with_lines.lines), get(Order, 99)]

    def by_get_entity(session: LockingSession) -> list[Any]:
        return use(session, partial(session.get_entity, lock=lock))

    def by_get(session: Session) -> list[Any]:
        return use(session, session.get)

    came_out, sent = outcome(Session, by_get)
    assert outcome(LockingSession, by_get_entity) == (came_out, sent)
    assert came_out == [True, 7, 1, None]


def test_it_adds_these_names_and_takes_none_away() -> None:
    def public(kind: type[Session]) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(LockingSession) - public(Session) == OWN
    assert public(Session) <= public(LockingSession)


@pytest.mark.parametrize("name", ["execute", "scalars", "scalar"])
def test_what_it_overrides_takes_what_the_session_takes(name: str) -> None:
    theirs = inspect.signature(getattr(Session, name)).parameters
    ours = inspect.signature(getattr(LockingSession, name)).parameters
    positional = [n for n, p in theirs.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert list(ours)[: len(positional)] == positional
    assert any(parameter.kind is parameter.VAR_KEYWORD for parameter in ours.values())


def test_events_of_the_session_are_heard_once_and_in_order(
    outcome: Callable[..., Outcome],
) -> None:
    names = ("before_flush", "after_flush", "before_commit", "after_commit", "after_begin")

    def act(session: Session) -> list[str]:
        heard: list[str] = []
        for name in names:
            event.listen(session, name, lambda *_, name=name: heard.append(name))
        USES["flush, commit"](session)
        return heard

    ours, theirs = outcome(LockingSession, act), outcome(Session, act)
    assert ours == theirs
    assert ours[0].count("before_flush") == 1


def test_a_sessionmaker_or_a_registry_makes_it(filled: Path) -> None:
    engine = create_engine(f"sqlite:///{filled}")
    factory = sessionmaker(engine, class_=LockingSession, expire_on_commit=False)
    registry = scoped_session(factory)
    assert isinstance(factory(), LockingSession)
    assert isinstance(registry(), LockingSession)
    assert registry().get_entity(Order, 1) is registry.get(Order, 1)
    registry.remove()
    engine.dispose()


# --------------------------------------------------------------------------------------------------
# An unused session keeps nothing for locks: no objects, and few bytes.

#: On top of a plain SQLAlchemy Session: one attribute with the options, which sessions share.
MOST_BYTES = 300
#: The same after a lock and its commit: the context, the calls, the parts and the guard.
MOST_BYTES_OF_USED = 1_050
MANY = 200


def has_context(session: LockingSession) -> bool:
    return any(isinstance(one, LockContext) for one in vars(session).values())


def indented(code: str) -> str:
    return textwrap.indent(code.replace(": Callable[[], Session]", ""), 8 * " ").strip()


def bytes_of(make: Callable[[], Session]) -> float:
    sessions = [make()]  # fills the caches
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        sessions += [make() for _ in range(MANY)]
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (after - before) / MANY


def test_what_a_session_keeps_for_its_locks_begins_with_its_transaction() -> None:
    with LockingSession(sa.create_engine("sqlite://")) as session:
        session.close()
        assert not has_context(session)
        session.begin()
        assert has_context(session)


def test_a_session_that_is_never_used_is_as_small_as_one_of_sqlalchemy() -> None:
    engine = sa.create_engine("sqlite://")
    plain, ours = bytes_of(lambda: Session(engine)), bytes_of(lambda: LockingSession(engine))
    assert ours - plain <= MOST_BYTES, (plain, ours)


def test_a_session_that_has_locked_and_committed_keeps_little(
    fresh: FreshProcesses, tmp_path: Path
) -> None:
    # In a separate process: every session-wide listener of another test takes room in each session.
    ended = fresh.run(f"""if True:
        import sqlalchemy as sa
        from sqlalchemy.orm import Session, declarative_base
        from sa_doclock import LockingSession, LockOptions

        class Order(declarative_base()):
            __tablename__ = "used_order"
            id = sa.Column(sa.Integer, primary_key=True)

        engine = sa.create_engine("sqlite:///{tmp_path}/used.db")
        Order.metadata.create_all(engine)
        with engine.begin() as connection:
            connection.execute(sa.insert(Order).values(id=1))

        def plain():
            session = Session(engine)
            session.get_one(Order, 1)
            session.commit()
            session.close()
            return session

        def locking():
            session = LockingSession(engine)
            session.get_one_entity(Order, 1, LockOptions.ForUpdate)
            session.commit()
            session.close()
            return session

        import gc, tracemalloc
        MANY = {MANY}
        {indented(inspect.getsource(bytes_of))}
        print(bytes_of(locking) - bytes_of(plain))
    """)
    assert ended.stderr == ""
    assert float(ended.stdout) <= MOST_BYTES_OF_USED


@pytest.mark.parametrize(
    "options", [{"guard": "warn"}, {"binds": {}}, {"lock_timeout": 1}], ids=str
)
def test_parts_that_are_asked_for_are_made_at_once(options: dict[str, Any]) -> None:
    with LockingSession(sa.create_engine("sqlite://"), **options) as session:
        assert has_context(session) is ("guard" in options)
