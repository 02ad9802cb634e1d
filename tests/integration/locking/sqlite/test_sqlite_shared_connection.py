"""SQLite with one connection for all sessions: a lock would be everybody's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from sa_doclock import LockingSession, LockNotSupported, LockOptions
from tests.support.models import Base, Order, refill

ForUpdate = LockOptions.ForUpdate
LOCKS = [ForUpdate, LockOptions.SharedRead, LockOptions.SnapshotRead]
Session = LockingSession


def filled(engine: sa.Engine) -> sa.Engine:
    """Make the tables and rows."""
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        refill(connection)
    return engine


@pytest.fixture
def shared() -> Iterator[sa.Engine]:
    """Make an engine with one connection for all threads, as tests of applications have it."""
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


@pytest.mark.parametrize("lock", LOCKS)
def test_one_connection_for_all_sessions_is_refused(shared: sa.Engine, lock: LockOptions) -> None:
    with Session(shared) as session:
        with pytest.raises(LockNotSupported, match=r"Order 1 .* share this one connection"):
            session.get_entity(Order, 1, lock)
        with pytest.raises(LockNotSupported, match=r"Order rows .* share this one connection"):
            session.scalars(session.entity_set(Order, lock)).all()
        assert session.get_one_entity(Order, 1).total == 30
        with pytest.raises(LockNotSupported):
            session.get_entity(Order, 1, lock)  # in a transaction that is open


@pytest.mark.parametrize("lock", LOCKS)
def test_one_connection_for_a_thread_is_refused(
    shared_in_thread: sa.Engine, lock: LockOptions
) -> None:
    """The commit of another session of the thread would give the lock up."""
    with Session(shared_in_thread) as first, Session(shared_in_thread) as second:
        with pytest.raises(LockNotSupported, match=r"Order 1 .* share this one connection"):
            first.get_entity(Order, 1, lock)
        assert second.get_one(Order, 1).total == 30
        second.get_one(Order, 1).total = 31
        second.flush()
        with pytest.raises(LockNotSupported, match=r"Order 2 .* share this one connection"):
            second.get_entity(Order, 2, lock)  # in a transaction that is open
