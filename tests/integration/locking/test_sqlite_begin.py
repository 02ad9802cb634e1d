"""SQLite if an engine hook sends BEGIN, or sqlite3 itself does (autocommit=False)."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import PendingRollbackError
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from sa_doclock import (
    LockingSession,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    WrongIsolation,
)
from tests.integration.locking.steps import (
    add_ten,
    finds_held,
    reads,
    recorded,
    save,
)
from tests.support.actors import Actor
from tests.support.models import Base, Customer, Order, refill
from tests.support.waits import wait_until_blocked

ForUpdate, SharedRead, SnapshotRead, NoWait = (
    LockOptions.ForUpdate,
    LockOptions.SharedRead,
    LockOptions.SnapshotRead,
    LockOptions.NoWait,
)
LOCKS = [ForUpdate, SharedRead, SnapshotRead]
Session = LockingSession
MakeEngine = Callable[..., sa.Engine]


def hooked(engine: sa.Engine) -> sa.Engine:
    """Set up the hooks that SQLAlchemy's documentation recommends for SAVEPOINT on SQLite."""

    @sa.event.listens_for(engine, "connect")
    def leave_transactions_to_us(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


def hooked_immediate(engine: sa.Engine) -> sa.Engine:
    """Do the same with BEGIN IMMEDIATE."""

    @sa.event.listens_for(engine, "connect")
    def leave_transactions_to_us(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


@pytest.mark.databases("sqlite")
class TestHooks:
    """The engine sends BEGIN itself."""

    @pytest.fixture
    def engine(self, make_engine: MakeEngine) -> sa.Engine:
        return hooked(make_engine())

    @pytest.fixture
    def session_factory(self, engine: sa.Engine) -> sessionmaker[LockingSession]:
        return sessionmaker(engine, class_=LockingSession)

    def test_the_second_waits(
        self, alice: Actor[LockingSession], bob: Actor[LockingSession]
    ) -> None:
        alice.does(add_ten)
        queued = bob.starts(reads())
        wait_until_blocked(waiter=bob, holder=alice, step=queued)
        alice.does(save)
        assert queued.result() == (40, [20, 20])

    @pytest.mark.parametrize("lock", [SharedRead, SnapshotRead])
    def test_a_reader_does_not(self, session: Session, other: Session, lock: LockOptions) -> None:
        add_ten(session)
        assert reads(lock)(other) == (30, [10, 20])

    def test_nowait(self, session: Session, other: Session) -> None:
        session.get_one_entity(Order, 1, ForUpdate)
        with pytest.raises(LockNotAvailable):
            other.get_entity(Order, 1, ForUpdate | NoWait)
        assert not other.in_transaction()
        session.release_locks()
        assert other.get_one_entity(Order, 1, ForUpdate).total == 30

    def test_after_a_read_of_its_own(self, session: Session, other: Session) -> None:
        session.get_one(Customer, 1)
        session.get_one_entity(Order, 1, ForUpdate)
        assert finds_held()(other)

    def test_in_a_savepoint(self, session: Session, other: Session) -> None:
        with session.begin():
            with session.begin_nested():
                session.get_one_entity(Order, 1, ForUpdate)
            assert finds_held()(other)
            with session.begin_nested() as savepoint:
                session.get_one_entity(Order, 1, ForUpdate).total = 31
                session.flush()
                savepoint.rollback()
            assert finds_held()(other)
        assert other.get_one(Order, 1).total == 30

    def test_a_failure_in_a_callers_transaction(self, session: Session, other: Session) -> None:
        other.get_one_entity(Order, 1, ForUpdate)
        session.begin()
        session.get_one(Customer, 1)
        with pytest.raises(LockNotAvailable):
            session.get_entity(Order, 1, ForUpdate | NoWait)
        with pytest.raises(PendingRollbackError):
            session.scalar(sa.select(Order.id))
        session.rollback()

    def test_nothing_is_open_afterwards(self, engine: sa.Engine, session: Session) -> None:
        session.get_one_entity(Order, 1, ForUpdate).total = 31
        session.save_changes()
        with engine.connect() as connection:
            raw: Any = connection.connection.driver_connection
            assert not raw.in_transaction
            assert connection.scalar(sa.select(Order.total).where(Order.id == 1)) == 31


@pytest.mark.databases("sqlite")
def test_a_hook_that_begins_immediately(make_engine: MakeEngine, other: Session) -> None:
    with Session(hooked_immediate(make_engine())) as session:
        session.get_one_entity(Order, 1, ForUpdate)
        assert finds_held()(other)
        session.rollback()
        session.get_one(Customer, 1)
        session.get_one_entity(Order, 1, ForUpdate).total = 31
        assert finds_held()(other)
        session.save_changes()
        session.get_one_entity(Order, 1, SharedRead)
        assert not finds_held()(other)


@pytest.mark.databases("sqlite")
def test_autocommit_without_a_hook_is_refused(make_engine: MakeEngine) -> None:
    with Session(make_engine(connect_args={"isolation_level": None})) as session:
        with pytest.raises(LockNotSupported, match="AUTOCOMMIT"):
            session.get_entity(Order, 1, ForUpdate)
        assert not session.in_transaction()


@pytest.mark.databases("sqlite")
@pytest.mark.skipif(sys.version_info < (3, 12), reason="came with Python 3.12")
@pytest.mark.parametrize("lock", LOCKS)
def test_transactions_by_pep_249(
    make_engine: MakeEngine, other: Session, lock: LockOptions
) -> None:
    engine = make_engine(connect_args={"autocommit": False})
    with Session(engine) as session:
        session.get_one_entity(Order, 1, lock)
        assert finds_held()(other) is (lock is ForUpdate)
        session.rollback()
        session.get_one_entity(Order, 1, ForUpdate).total += 1
        session.save_changes()
        with recorded(engine) as statements:
            session.get_one(Order, 1)
        assert len(statements) == 1
    assert not finds_held()(other)
    assert other.get_one(Order, 1).total == 31


# --------------------------------------------------------------------------------------------------
# SQLite with one connection for all sessions: they would all share the lock.

LOCKS_SHARED_CONNECTION = [ForUpdate, LockOptions.SharedRead, LockOptions.SnapshotRead]


def filled(engine: sa.Engine) -> sa.Engine:
    """Create the tables and rows."""
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        refill(connection)
    return engine


@pytest.fixture
def shared() -> Iterator[sa.Engine]:
    """Make an engine with one connection for all threads, as application tests do."""
    options = {"check_same_thread": False}
    engine = sa.create_engine("sqlite://", poolclass=StaticPool, connect_args=options)
    yield filled(engine)
    engine.dispose()


@pytest.fixture
def shared_in_thread() -> Iterator[sa.Engine]:
    """Make an engine with one connection for all sessions of a thread: SQLAlchemy's default."""
    engine = sa.create_engine("sqlite://", poolclass=SingletonThreadPool)
    yield filled(engine)
    engine.dispose()


@pytest.mark.parametrize("lock", LOCKS_SHARED_CONNECTION)
def test_one_connection_for_all_sessions_is_refused(shared: sa.Engine, lock: LockOptions) -> None:
    with Session(shared) as session:
        with pytest.raises(LockNotSupported, match=r"Order 1 .* share this one connection"):
            session.get_entity(Order, 1, lock)
        with pytest.raises(LockNotSupported, match=r"Order rows .* share this one connection"):
            session.scalars(session.entity_set(Order, lock)).all()
        assert session.get_one_entity(Order, 1).total == 30
        with pytest.raises(LockNotSupported):
            session.get_entity(Order, 1, lock)  # in an open transaction


@pytest.mark.parametrize("lock", LOCKS_SHARED_CONNECTION)
def test_one_connection_for_a_thread_is_refused(
    shared_in_thread: sa.Engine, lock: LockOptions
) -> None:
    """The commit of another session of the thread would release the lock."""
    with Session(shared_in_thread) as first, Session(shared_in_thread) as second:
        with pytest.raises(LockNotSupported, match=r"Order 1 .* share this one connection"):
            first.get_entity(Order, 1, lock)
        assert second.get_one(Order, 1).total == 30
        second.get_one(Order, 1).total = 31
        second.flush()
        late = lock is LockOptions.SnapshotRead  # too late for a snapshot, on any database
        reason = "already open" if late else "share this one connection"
        with pytest.raises(
            WrongIsolation if late else LockNotSupported, match=f"Order 2 .* {reason}"
        ):
            second.get_entity(Order, 2, lock)  # in an open transaction
