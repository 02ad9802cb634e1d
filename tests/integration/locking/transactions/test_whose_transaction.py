"""Whoever opened the transaction ends it: save_changes() and release_locks()."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import PendingRollbackError, SAWarning
from sqlalchemy.pool import QueuePool

from sa_doclock import DeadlockDetected, LockingSession, LockMisuse, LockNotAvailable, LockOptions
from tests.integration.locking.steps import finds_held, is_free, locks, recorded, set_total
from tests.support.actors import Actor
from tests.support.models import Customer, Line, Order
from tests.support.tracing import CtrlC

pytestmark = pytest.mark.quick

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
Session = LockingSession
Run = Callable[..., list[Any]]
TOTAL = sa.select(Order.total).where(Order.id == 1)


def change(session: Session) -> Order:
    """Lock order 1 and change it, without a flush."""
    order = session.get_one_entity(Order, 1, ForUpdate)
    order.total = 31
    return order


@pytest.mark.read_committed
def test_the_lock_has_opened_it(session: Session, other: Session, elsewhere: Run) -> None:
    change(session)
    session.save_changes()
    assert not session.in_transaction()
    assert not finds_held()(other)
    assert elsewhere(TOTAL) == [(31,)]


@pytest.mark.read_committed
def test_an_earlier_read_has_opened_it(session: Session, other: Session, elsewhere: Run) -> None:
    session.get_one(Customer, 1)
    change(session)
    session.save_changes()
    assert not session.in_transaction()
    assert not finds_held()(other)
    assert elsewhere(TOTAL) == [(31,)]


@pytest.mark.read_committed
def test_begin_has_opened_it(session: Session, other: Session, elsewhere: Run) -> None:
    with session.begin():
        order = change(session)
        session.save_changes()
        assert not session.is_modified(order)  # flushed
        assert finds_held()(other)
        assert list(session.held_locks) == [(Order, (1,))]
    assert not finds_held()(other)
    assert elsewhere(TOTAL) == [(31,)]


@pytest.mark.read_committed
def test_a_begin_that_ends_badly_undoes_it(session: Session, elsewhere: Run) -> None:
    def fail() -> None:
        with session.begin():
            change(session)
            session.save_changes()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert elsewhere(TOTAL) == [(30,)]


@pytest.mark.read_committed
def test_a_savepoint_is_open(session: Session, other: Session, elsewhere: Run) -> None:
    order = change(session)
    with session.begin_nested():
        order.total = 32
        session.save_changes()
        assert finds_held()(other)
    assert session.in_transaction()
    assert finds_held()(other)
    session.save_changes()
    assert elsewhere(TOTAL) == [(32,)]


@pytest.mark.read_committed
def test_a_factory_that_begins(session_factory: Any, other: Session, elsewhere: Run) -> None:
    with session_factory.begin() as session:
        change(session)
        session.save_changes()
        assert finds_held()(other)
    assert elsewhere(TOTAL) == [(31,)]


@pytest.mark.read_committed
def test_save_changes_without_a_lock(session: Session, elsewhere: Run) -> None:
    session.add(Customer(id=9, name="new"))
    session.save_changes()
    assert not session.in_transaction()
    assert elsewhere(sa.select(Customer.name).where(Customer.id == 9)) == [("new",)]


@pytest.mark.read_committed
def test_without_a_transaction_nothing_is_sent(engine: sa.Engine, session: Session) -> None:
    with recorded(engine) as statements:
        session.release_locks()
        session.save_changes()
    assert statements == []
    assert not session.in_transaction()


@pytest.mark.read_committed
def test_release_locks_ends_what_a_lock_has_opened(session: Session, other: Session) -> None:
    for lock in (ForUpdate, SharedRead, LockOptions.SnapshotRead):
        session.get_one_entity(Order, 1, lock)
        session.release_locks()
        assert not session.in_transaction()
        assert not session.held_locks
        assert not finds_held()(other)


@pytest.mark.read_committed
def test_release_locks_drops_what_was_changed(session: Session, elsewhere: Run) -> None:
    order = change(session)
    order.lines.append(Line(id=9, name="x", value=1))
    session.flush()
    order.total = 32
    session.release_locks()
    assert (order.total, len(order.lines)) == (30, 2)
    assert elsewhere(TOTAL) == [(30,)]


@pytest.mark.read_committed
def test_release_locks_leaves_the_callers_transaction_alone(
    session: Session, other: Session, elsewhere: Run
) -> None:
    with session.begin():
        change(session)
        with pytest.raises(LockMisuse, match=r"begin\(\)"):
            session.release_locks()
        assert finds_held()(other)
    assert elsewhere(TOTAL) == [(31,)]


@pytest.mark.read_committed
def test_release_locks_leaves_a_savepoint_alone(
    session: Session, other: Session, elsewhere: Run
) -> None:
    change(session)
    with session.begin_nested(), pytest.raises(LockMisuse, match="leave that block"):
        session.release_locks()
    assert finds_held()(other)
    session.save_changes()
    assert elsewhere(TOTAL) == [(31,)]


# --------------------------------------------------------------------------------------------------
# Several sessions on one Connection: each session's errors are its own, and typed.


@pytest.fixture
def connection(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Lend one connection, in the lender's transaction."""
    with engine.connect() as connection:
        connection.begin()
        yield connection


@pytest.fixture
def pair(connection: sa.Connection) -> Iterator[list[LockingSession]]:
    """Make two sessions that both take part in the lender's transaction."""
    sessions = [LockingSession(connection, join_transaction_mode="rollback_only") for _ in range(2)]
    for session in sessions:
        session.get_one(Customer, 1)
    yield sessions
    with warnings.catch_warnings():
        # SQLAlchemy warns if one session rolls back what the other rolled back.
        warnings.simplefilter("ignore", SAWarning)
        for session in sessions:
            session.close()


@pytest.mark.not_databases("sqlite")
@pytest.mark.read_committed
@pytest.mark.parametrize("position", [0, 1], ids=["older", "newer"])
def test_a_lock_that_is_not_available_is_typed(
    pair: list[LockingSession], alice: Actor[LockingSession], position: int
) -> None:
    alice.does(locks(Order, 2))
    with pytest.raises(LockNotAvailable) as caught:
        pair[position].get_entity(Order, 2, ForUpdate | LockOptions.NoWait)
    assert (caught.value.entity, caught.value.ident) == (Order, 2)
    with pytest.raises(PendingRollbackError):
        pair[position].execute(sa.select(Order.id))


@pytest.mark.not_databases("sqlite")
@pytest.mark.read_committed
def test_a_session_that_is_gone_takes_no_error_along(
    connection: sa.Connection, alice: Actor[LockingSession]
) -> None:
    alice.does(locks(Order, 2))
    older = LockingSession(connection, join_transaction_mode="rollback_only")
    older.get_one(Customer, 1)
    newer = LockingSession(connection, join_transaction_mode="rollback_only")
    newer.get_one(Customer, 1)
    del newer
    gc.collect()  # frees the cycle of SQLAlchemy's session and transaction now
    with pytest.raises(LockNotAvailable):
        older.get_entity(Order, 2, ForUpdate | LockOptions.NoWait)
    older.close()


@pytest.mark.not_databases("sqlite")
@pytest.mark.read_committed
@pytest.mark.databases("mysql", "mariadb")  # they end the transaction that wrote less
@pytest.mark.parametrize("position", [0, 1], ids=["older", "newer"])
def test_a_deadlock_is_the_end_of_both(
    connection: sa.Connection,
    pair: list[LockingSession],
    alice: Actor[LockingSession],
    position: int,
    elsewhere: Callable[..., list[Any]],
) -> None:
    def write_more(session: LockingSession) -> None:
        session.execute(sa.update(Line).values(value=Line.value + 1))

    victim, beside = pair[position], pair[1 - position]
    alice.does(set_total(2, 102))
    alice.does(write_more)
    beside.execute(sa.update(Customer).where(Customer.id == 1).values(name="half"))
    victim.get_one_entity(Order, 1, ForUpdate)
    step = alice.starts(locks(Order, 1))
    with pytest.raises(DeadlockDetected) as caught:
        victim.get_entity(Order, 2, ForUpdate)
    assert (caught.value.entity, caught.value.ident) == (Order, 2)
    step.result()
    for session in pair:  # any write now would be saved alone
        with pytest.raises(PendingRollbackError):
            session.execute(sa.update(Customer).values(name="the other half"))
        assert dict(session.held_locks) == {}
    connection.rollback()
    alice.does(lambda session: session.rollback())
    assert elsewhere(sa.select(Customer.name).order_by(Customer.id)) == [("Ann",), ("Ben",)]


# --------------------------------------------------------------------------------------------------
# A raising listener or Ctrl-C stops SQLAlchemy between the end of a transaction and its event.

NoWait = LockOptions.NoWait

# SQLAlchemy's pool logs and raises the interruption of a reset.


@pytest.fixture
def pooled(make_engine: Callable[..., sa.Engine]) -> sa.Engine:
    return make_engine(poolclass=QueuePool)


@contextmanager
def ctrl_c(engine: sa.Engine, name: str) -> Iterator[None]:
    """Raise KeyboardInterrupt at the next event of this name."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    event.listen(engine, name, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        event.remove(engine, name, interrupt)


def checked_out(engine: sa.Engine) -> int:
    pool = engine.pool
    assert isinstance(pool, QueuePool)
    return pool.checkedout()


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")
def test_close_gives_the_connection_and_the_lock_back(
    pooled: sa.Engine, other: LockingSession
) -> None:
    with LockingSession(pooled) as session:
        session.get_one_entity(Order, 1, ForUpdate)
        with ctrl_c(pooled, "rollback"):
            session.close()
        assert checked_out(pooled) == 0
        assert is_free(other, Order, 1)


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")
def test_close_after_a_failed_lock_closes_in_spite_of_an_interrupted_rollback(
    pooled: sa.Engine, other: LockingSession
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    with LockingSession(pooled) as session:
        session.begin()
        session.add(Order(id=77, total=0))
        with pytest.raises(LockNotAvailable):
            session.get_one_entity(Order, 1, ForUpdate | NoWait)
        with ctrl_c(pooled, "reset"):
            session.close()
        assert not session.new
        other.rollback()
        session.get_one_entity(Order, 1, ForUpdate)


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")
@pytest.mark.parametrize("use", ["close", "rollback", "held_locks", "on_commit", "get_entity"])
def test_the_functions_of_a_commit_are_called_in_spite_of_it(
    pooled: sa.Engine, other: LockingSession, use: str
) -> None:
    called: list[str] = []
    with LockingSession(pooled) as session:
        session.get_one_entity(Order, 1, ForUpdate).total += 1
        session.on_commit(lambda: called.append("committed"))
        with ctrl_c(pooled, "reset"):
            session.commit()
        if use == "on_commit":
            session.on_commit(lambda: called.append("rolled back"))
        elif use == "held_locks":
            assert not session.held_locks
        elif use == "get_entity":
            session.get_one_entity(Order, 2, ForUpdate)
        else:
            getattr(session, use)()
        assert called == ["committed"]
        session.on_commit(lambda: called.append("rolled back"))
        session.get_one_entity(Order, 2, ForUpdate)
        assert not is_free(other, Order, 2)
        session.rollback()
    assert called == ["committed"]


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")
def test_what_follows_an_interrupted_begin_nested_is_that_of_begin(pooled: sa.Engine) -> None:
    with LockingSession(pooled) as session:
        session.begin_nested()
        session.get_one_entity(Order, 1, ForUpdate)
        with ctrl_c(pooled, "reset"):
            session.close()
        with session.begin():
            session.get_one_entity(Order, 1, ForUpdate)
            session.save_changes()
            assert session.held_locks == {(Order, (1,)): ForUpdate}


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")
def test_also_of_a_transaction_whose_own_begin_was_interrupted(
    pooled: sa.Engine, other: LockingSession
) -> None:
    begin, interrupted = CtrlC("sa_doclock.core.session.hooks"), True
    while interrupted:
        with LockingSession(pooled) as session:
            interrupted = begin.during(lambda: session.add(Order(id=77, total=0)))
            session.expunge_all()
            session.get_one_entity(Order, 1, ForUpdate)
            kept = session.connection()  # else the garbage collector returns it
            with ctrl_c(pooled, "rollback"):
                session.close()
            assert checked_out(pooled) == 0, begin.raised
            del kept
            assert is_free(other, Order, 1)


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")
def test_also_of_a_savepoint_that_had_no_connection_yet(pooled: sa.Engine) -> None:
    """Otherwise save_changes() would commit a transaction that the next begin() opened."""
    close, interrupted = CtrlC("sa_doclock.core.session.hooks", "sa_doclock.core.transaction"), True
    while interrupted:
        with LockingSession(pooled) as session:
            session.begin_nested()
            interrupted = close.during(session.close)
            session.expunge_all()
            while session.in_transaction():
                session.close()
            with session.begin():
                session.get_one_entity(Order, 1, ForUpdate)
                session.save_changes()
                assert session.held_locks == {(Order, (1,)): ForUpdate}, close.raised
