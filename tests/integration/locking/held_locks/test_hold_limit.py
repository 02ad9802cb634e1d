"""hold_limit: a transaction that holds its locks too long ends, and saves nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError, PendingRollbackError
from sqlalchemy.orm import sessionmaker

from sa_doclock import (
    LockingScopedSession,
    LockingSession,
    LockLost,
    LockNotAvailable,
    LockOptions,
    claim_each,
    run_transaction,
)
from sa_doclock.testing import recorded_locks
from tests.integration.locking.connections import (
    DEFAULTS,
    LIMITED,
    LIMITED_BEFORE,
    LONG,
    Clock,
    limits_of,
)
from tests.integration.locking.steps import finds_held
from tests.support.databases import Database
from tests.support.models import Customer, Order
from tests.support.poolers import SETS_CONNECTION

pytestmark = [pytest.mark.quick, pytest.mark.read_committed]

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
Session = LockingSession
Run = Callable[..., list[Any]]
TOTALS = sa.select(Order.total).order_by(Order.id)
SERVERS = ("postgresql", "mysql", "mariadb")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def session_factory(engine: sa.Engine) -> sessionmaker[Session]:
    return sessionmaker(engine, class_=Session, hold_limit=LONG)


def change(session: Session) -> Order:
    order = session.get_one_entity(Order, 1, ForUpdate)
    order.total = 31
    return order


USES: dict[str, Callable[[Session], object]] = {
    "statement": lambda session: session.scalar(sa.text("SELECT 1")),
    "read": lambda session: session.get_one(Customer, 1),
    "write": lambda session: session.execute(sa.update(Order).where(Order.id == 1).values(total=9)),
    "flush": lambda session: session.flush(),
    "commit": lambda session: session.commit(),
    "save": lambda session: session.save_changes(),
    "same document": lambda session: session.get_one_entity(Order, 1, ForUpdate),
    "another": lambda session: session.get_one_entity(Order, 2, ForUpdate),
    "key": lambda session: session.lock_key("a"),
    "for update": lambda session: session.scalars(sa.select(Order).with_for_update()).all(),
    "connection": lambda session: session.connection().exec_driver_sql("SELECT 1"),
}


@pytest.mark.own_logic
@pytest.mark.parametrize("use", USES)
def test_the_next_use_ends_it(
    session: Session, other: Session, elsewhere: Run, clock: Clock, use: str
) -> None:
    change(session)
    clock.put_forward()
    with pytest.raises(LockLost) as caught:
        USES[use](session)
    error = caught.value
    assert isinstance(error, OperationalError)
    assert (error.entity, error.ident, error.lock) == (Order, 1, ForUpdate)
    assert not error.retryable
    for words in ("Order 1 FOR UPDATE on ", f"held for {LONG + 1}", f"hold_limit of {LONG} s"):
        assert words in error.args[0]
    assert not session.held_locks
    assert not finds_held()(other)  # before rollback()
    with pytest.raises((PendingRollbackError, LockLost)):
        session.commit()
    session.rollback()
    assert elsewhere(TOTALS) == [(30,), (5,)]
    with session.locked(Order, 1) as order:
        order.total = 32
    assert elsewhere(TOTALS) == [(32,), (5,)]


@pytest.mark.own_logic
def test_held_locks_are_none_from_then_on(session: Session, clock: Clock) -> None:
    change(session)
    assert session.held_locks
    clock.put_forward()
    assert not session.held_locks
    with pytest.raises(LockLost):
        session.commit()


@pytest.mark.own_logic
def test_in_time(session: Session, elsewhere: Run, clock: Clock) -> None:
    change(session)
    clock.put_forward(LONG / 2)
    session.flush()
    session.commit()
    clock.put_forward(LONG / 2)
    with session.locked(Order, 2) as order:  # the count starts anew
        clock.put_forward(LONG / 2)
        order.total = 6
    assert elsewhere(TOTALS) == [(31,), (6,)]


@pytest.mark.own_logic
def test_what_is_no_lock_has_no_limit(session: Session, clock: Clock) -> None:
    session.get_one(Order, 1)
    clock.put_forward()
    session.get_one(Order, 2)
    session.commit()
    session.get_one_entity(Order, 1, LockOptions.SnapshotRead)
    clock.put_forward()
    session.get_one(Order, 2)
    assert session.held_locks


@pytest.mark.own_logic
def test_after_what_was_flushed_before(session: Session, elsewhere: Run, clock: Clock) -> None:
    change(session)
    session.flush()
    clock.put_forward()
    with pytest.raises(LockLost):
        session.commit()
    session.close()
    assert elsewhere(TOTALS) == [(30,), (5,)]


@pytest.mark.own_logic
def test_rollback_and_close_meet_no_error(session: Session, other: Session, clock: Clock) -> None:
    for end in (session.rollback, session.release_locks, session.close):
        change(session)
        clock.put_forward()
        end()
        assert not finds_held()(other)


def in_locked(session: Session, clock: Clock) -> None:
    with session.locked(Order, 1) as order:
        order.total = 31
        clock.put_forward()


def in_begin(session: Session, clock: Clock) -> None:
    with session.begin():
        change(session)
        clock.put_forward()


def in_documents(session: Session, clock: Clock) -> None:
    with session.locked_documents(Order, [1, 2]) as orders:
        orders[0].total = 31
        clock.put_forward()


def in_savepoint(session: Session, clock: Clock) -> None:
    with session.begin_nested():
        change(session)
        clock.put_forward()
        session.flush()


@pytest.mark.own_logic
@pytest.mark.parametrize("block", [in_locked, in_begin, in_documents])
def test_a_block(
    session: Session, elsewhere: Run, clock: Clock, block: Callable[[Session, Clock], None]
) -> None:
    with pytest.raises(LockLost):
        block(session, clock)
    assert not session.in_transaction()
    assert elsewhere(TOTALS) == [(30,), (5,)]


@pytest.mark.own_logic
def test_an_error_of_the_program_comes_out(session: Session, clock: Clock) -> None:
    def fail(block: Any) -> None:
        with block:
            session.get_one_entity(Order, 1, ForUpdate)
            clock.put_forward()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail(session.locked(Order, 1))
    with pytest.raises(ZeroDivisionError):
        fail(session.begin())


@pytest.mark.own_logic
def test_in_a_savepoint(session: Session, elsewhere: Run, clock: Clock) -> None:
    session.add(Customer(id=9, name="tag"))
    with pytest.raises(LockLost):
        in_savepoint(session, clock)
    with pytest.raises((PendingRollbackError, LockLost)):
        session.commit()
    session.rollback()
    assert elsewhere(TOTALS) == [(30,), (5,)]
    assert elsewhere(sa.select(Customer.id).where(Customer.id == 9)) == []


@pytest.mark.own_logic
def test_a_savepoint_that_was_rolled_back_holds_nothing(session: Session, clock: Clock) -> None:
    with session.begin_nested() as savepoint:
        change(session)
        savepoint.rollback()
    clock.put_forward()
    session.get_one(Customer, 1)
    session.commit()


@pytest.mark.own_logic
def test_run_transaction_does_not_repeat_it(
    session_factory: sessionmaker[Session], elsewhere: Run, clock: Clock
) -> None:
    calls = []

    def work(session: Session) -> None:
        calls.append(change(session))
        clock.put_forward()

    with pytest.raises(LockLost):
        run_transaction(session_factory, work)
    assert len(calls) == 1
    assert elsewhere(TOTALS) == [(30,), (5,)]


@pytest.mark.own_logic
def test_a_claim(session_factory: sessionmaker[Session], elsewhere: Run, clock: Clock) -> None:
    def work() -> None:
        for claim in claim_each(session_factory, sa.select(Order).where(Order.id == 1)):
            with claim as order:
                order.total = 31
                clock.put_forward()

    with pytest.raises(LockLost):
        work()
    assert elsewhere(TOTALS) == [(30,), (5,)]


@pytest.mark.own_logic
def test_several_documents_and_a_key(session: Session, clock: Clock) -> None:
    session.lock_key("a")
    session.get_entities(Order, [1, 2], ForUpdate)
    clock.put_forward()
    with pytest.raises(
        LockLost, match=r"named lock 'a' FOR UPDATE on .*, with 2 others, for"
    ) as caught:
        session.commit()
    assert (caught.value.entity, caught.value.ident) == (None, "a")


@pytest.mark.own_logic
def test_the_records(session: Session, clock: Clock) -> None:
    with recorded_locks() as locks:
        change(session)
        clock.put_forward()
        with pytest.raises(LockLost):
            session.commit()
        session.rollback()
    assert [(one.ident, one.outcome, one.ended) for one in locks] == [
        (1, "granted", "lost"),
        (1, "lost", None),
    ]


def test_a_lent_connection_keeps_its_transaction(
    engine: sa.Engine, elsewhere: Run, clock: Clock, database: Database
) -> None:
    with engine.connect() as lent, lent.begin():
        lent.execute(sa.insert(Customer).values(id=9, name="tag"))
        with Session(lent, hold_limit=LONG, join_transaction_mode="create_savepoint") as session:
            change(session)
            if database.name in SERVERS:
                assert limits_of(session, database.name) == DEFAULTS[database.name]
            clock.put_forward()
            with pytest.raises(LockLost, match=r"call rollback\(\)"):
                session.commit()
            session.rollback()
    assert elsewhere(sa.select(Customer.id).where(Customer.id == 9)) == [(9,)]
    assert elsewhere(TOTALS) == [(30,), (5,)]


@pytest.mark.databases("mysql", "mariadb")  # PostgreSQL's max_prepared_transactions is 0
@pytest.mark.parametrize("fails", ["commit", "statement"])
def test_two_phases(engine: sa.Engine, elsewhere: Run, clock: Clock, fails: str) -> None:
    with Session(engine, twophase=True, hold_limit=LONG) as session:
        change(session)
        session.commit()
        session.get_one_entity(Order, 1, ForUpdate).total = 32
        session.flush()
        clock.put_forward()
        with pytest.raises(LockLost):
            USES[fails](session)
        session.rollback()
    assert elsewhere(TOTALS) == [(31,), (5,)]


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.parametrize(("end", "total"), [("commit", 31), ("rollback", 30)])
def test_the_limit_does_not_end_a_prepared_transaction(
    engine: sa.Engine, elsewhere: Run, clock: Clock, end: str, total: int
) -> None:
    """A ROLLBACK does not end it, so the second phase must reach the server."""
    with Session(engine, twophase=True, hold_limit=LONG) as session:
        change(session)
        session.prepare()
        clock.put_forward()
        getattr(session, end)()
    assert elsewhere(TOTALS) == [(total,), (5,)]
    with Session(engine) as session:
        session.get_one_entity(Order, 1, ForUpdate, lock_timeout=0)


# The server's own limit


def key_and_document(session: Session) -> Order:
    session.lock_key("a")
    return change(session)


WAYS: dict[str, Callable[[Session], object]] = {
    "get_entity": lambda session: session.get_one_entity(Order, 1, ForUpdate),
    "no key": lambda session: session.get_one_entity(Order, 1, ForUpdate | LockOptions.NoKey),
    "shared": lambda session: session.get_one_entity(Order, 1, SharedRead),
    "timeout": lambda session: session.get_one_entity(Order, 1, ForUpdate, lock_timeout=29.5),
    "no wait": lambda session: session.get_one_entity(Order, 1, ForUpdate, lock_timeout=0),
    "get_document": lambda session: session.get_one_document(Order, 1, ForUpdate),
    "get_entities": lambda session: session.get_entities(Order, [1, 2], ForUpdate),
    "set": lambda session: session.scalars(session.entity_set(Order, ForUpdate)).all(),
    "key": lambda session: session.lock_key("a"),
    "key and document": key_and_document,
    "for update": lambda session: session.scalars(sa.select(Order).with_for_update()).all(),
    "second": lambda session: (session.get_one(Customer, 1), change(session)),
}
BEFORE = {"key", "key and document", "for update"}


@pytest.mark.databases(*SERVERS)
@pytest.mark.parametrize("way", WAYS)
def test_the_server_limits_it_and_forgets_it(
    make_engine: Callable[..., sa.Engine],
    read_committed: dict[str, Any],
    database: Database,
    way: str,
) -> None:
    engine = make_engine(pool_size=1, max_overflow=0, **read_committed)
    with Session(engine, hold_limit=timedelta(seconds=LONG)) as session:
        for end in ("commit", "rollback", "close"):
            kept = WAYS[way](session)
            limited = LIMITED_BEFORE if way in BEFORE else LIMITED
            assert limits_of(session, database.name) == limited[database.name]
            getattr(session, end)()
            assert limits_of(engine, database.name) == DEFAULTS[database.name]
            del kept


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("way", ["get_entity", "timeout", "get_document", "set"])
def test_in_a_pipeline(make_engine: Callable[..., sa.Engine], way: str) -> None:
    engine = make_engine(pool_size=1, max_overflow=0)
    if engine.driver != "psycopg":
        pytest.skip("a pipeline needs psycopg 3")
    with Session(engine, hold_limit=LONG, pipeline=True) as session:
        kept = WAYS[way](session)
        assert limits_of(session, "postgresql") == LIMITED["postgresql"]
        session.commit()
        del kept
    assert limits_of(engine, "postgresql") == DEFAULTS["postgresql"]


@pytest.mark.databases(*SERVERS)
def test_again_after_a_savepoint(engine: sa.Engine, database: Database, other: Session) -> None:
    """PostgreSQL undoes the setting with the savepoint."""
    other.get_one_entity(Order, 2, ForUpdate)
    with Session(engine, hold_limit=LONG) as session:
        session.get_one(Customer, 1)
        with session.begin_nested() as savepoint:
            change(session)
            savepoint.rollback()
        change(session)
        assert limits_of(session, database.name) == LIMITED[database.name]
        with pytest.raises(LockNotAvailable), session.begin_nested():
            session.get_one_entity(Order, 2, ForUpdate | LockOptions.NoWait)
        assert limits_of(session, database.name) == LIMITED[database.name]
        session.rollback()
        assert limits_of(session, database.name) == DEFAULTS[database.name]


SHORTER = {
    "postgresql": "SET idle_in_transaction_session_timeout = '9min'",
    "mysql": "SET SESSION wait_timeout = 540",
    "mariadb": "SET SESSION idle_transaction_timeout = 540",
}


@SETS_CONNECTION
@pytest.mark.databases(*SERVERS)
def test_a_shorter_limit_of_the_connection_stays(
    make_engine: Callable[..., sa.Engine], read_committed: dict[str, Any], database: Database
) -> None:
    engine = make_engine(pool_size=1, max_overflow=0, **read_committed)
    with engine.connect() as connection:
        connection.exec_driver_sql(SHORTER[database.name])
        connection.commit()
    own = {"postgresql": ("9min", "0"), "mysql": (540,), "mariadb": (540,)}[database.name]
    with Session(engine, hold_limit=LONG) as session:
        change(session)
        assert limits_of(session, database.name)[0] == own[0]
        session.commit()
    assert limits_of(engine, database.name) == own


@pytest.mark.databases(*SERVERS)
def test_without_it_nothing_is_set(engine: sa.Engine, database: Database) -> None:
    with Session(engine) as session:
        change(session)
        assert limits_of(session, database.name) == DEFAULTS[database.name]


# The arguments


@pytest.mark.own_logic
@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("name", ["hold_limit", "warn_held_after"])
def test_bad_input(engine: sa.Engine, name: str) -> None:
    for value in (-1, float("nan"), float("inf"), timedelta(seconds=-1)):
        with pytest.raises(ValueError, match=name):
            Session(engine, **{name: value})  # type: ignore[arg-type]
    for wrong in ("5", True, [1]):
        with pytest.raises(TypeError, match=name):
            Session(engine, **{name: wrong})  # type: ignore[arg-type]
    Session(engine, **{name: timedelta(seconds=1)}).close()  # type: ignore[arg-type]


@pytest.mark.own_logic
@pytest.mark.databases("sqlite")
def test_no_time_at_all(engine: sa.Engine) -> None:
    with pytest.raises(ValueError, match="hold_limit must be more than 0"):
        Session(engine, hold_limit=0)


@pytest.mark.own_logic
@pytest.mark.databases("sqlite")
def test_a_scoped_session(session_factory: sessionmaker[Session], clock: Clock) -> None:
    scoped = LockingScopedSession(session_factory)
    scoped.get_one_entity(Order, 1, ForUpdate)
    clock.put_forward()
    with pytest.raises(LockLost):
        scoped.commit()
    scoped.remove()
