"""The isolation level of a lock on a default engine applies only to its transaction.

A transaction at READ COMMITTED sees what others commit between two of its reads; a transaction at
the server's default, REPEATABLE READ, does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sa_doclock import (
    AsyncLockingSession,
    LockingSession,
    LockNotAvailable,
    LockOptions,
    WrongIsolation,
)
from tests.integration.asyncio.drivers import connected, drivers_of, in_a_loop, url_for
from tests.support.databases import Database
from tests.support.models import Customer, Order

ForUpdate, SharedRead, NoWait = LockOptions.ForUpdate, LockOptions.SharedRead, LockOptions.NoWait
Run = Callable[..., Any]
Use = Callable[[LockingSession, LockingSession], object]
pytestmark = pytest.mark.databases("mysql", "mariadb")

NAME = sa.select(Customer.name).where(Customer.id == 1)


@pytest.fixture
def engine(make_engine: Callable[..., sa.Engine]) -> sa.Engine:
    """Make an engine with one connection, at the server's default level."""
    return make_engine(pool_size=1, max_overflow=0)


@pytest.fixture
def holder(make_session: Callable[..., LockingSession]) -> LockingSession:
    """Open a session on a separate engine."""
    return make_session()


def rename(name: str) -> sa.Executable:
    return sa.update(Customer).where(Customer.id == 1).values(name=name)


def sees_commits(connection: sa.Connection, elsewhere: Run) -> bool:
    """Return whether the open transaction sees another's commits, as at READ COMMITTED."""
    before = connection.scalar(NAME)
    elsewhere(rename(f"{before}?"))
    return connection.scalar(NAME) != before


def commit(session: LockingSession, _: LockingSession) -> None:
    session.get_one_entity(Order, 1, ForUpdate).total = 31
    session.save_changes()


def roll_back(session: LockingSession, _: LockingSession) -> None:
    session.get_one_entity(Order, 1, SharedRead)
    session.release_locks()


def close(session: LockingSession, _: LockingSession) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    session.close()


def find_nothing(session: LockingSession, _: LockingSession) -> None:
    session.get_entity(Order, 99, ForUpdate)
    session.rollback()


def take_a_key(session: LockingSession, _: LockingSession) -> None:
    session.lock_key("key")
    session.commit()


def be_refused(session: LockingSession, holder: LockingSession) -> None:
    holder.get_one_entity(Order, 1, ForUpdate)
    with suppress(LockNotAvailable):
        session.get_entity(Order, 1, ForUpdate | NoWait)


def time_out(session: LockingSession, holder: LockingSession) -> None:
    holder.get_one_entity(Order, 1, ForUpdate)
    with suppress(LockNotAvailable):
        session.get_entity(Order, 1, ForUpdate, lock_timeout=0.2)


def fail_in_a_statement(session: LockingSession, _: LockingSession) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    with suppress(DBAPIError):
        session.execute(sa.text("SELECT * FROM no_such_table"))
    session.close()


def fail_before_the_lock(session: LockingSession, _: LockingSession) -> None:
    def fail(*_: object) -> None:
        raise InterruptedError

    session.connection(bind_arguments={"mapper": Order})
    session.rollback()
    engine = session.get_bind()
    sa.event.listen(engine, "before_execute", fail)
    try:
        with suppress(InterruptedError):
            session.get_entity(Order, 1, ForUpdate)
    finally:
        sa.event.remove(engine, "before_execute", fail)
    session.close()


def in_a_savepoint(session: LockingSession, _: LockingSession) -> None:
    with session.begin(), session.begin_nested():
        session.get_one_entity(Order, 1, ForUpdate)


USES: list[Use] = [
    *(commit, roll_back, close, find_nothing, take_a_key, be_refused, time_out),
    *(fail_in_a_statement, fail_before_the_lock, in_a_savepoint),
]


@pytest.mark.parametrize("use", USES)
def test_the_next_transaction_is_at_the_default(
    engine: sa.Engine, session: LockingSession, holder: LockingSession, elsewhere: Run, use: Use
) -> None:
    use(session, holder)
    with engine.connect() as connection:
        assert not sees_commits(connection, elsewhere)
        connection.rollback()
        assert not sees_commits(connection, elsewhere)


@pytest.mark.parametrize("lock", [ForUpdate, SharedRead])
@pytest.mark.parametrize("default", ["REPEATABLE READ", "SERIALIZABLE"])
def test_that_of_the_lock_sees_what_others_commit(
    engine: sa.Engine, elsewhere: Run, lock: LockOptions, default: str
) -> None:
    with LockingSession(engine.execution_options(isolation_level=default)) as session:
        session.get_one_entity(Order, 1, lock)
        assert sees_commits(session.connection(), elsewhere)


def test_a_snapshot_does_not(engine: sa.Engine, elsewhere: Run) -> None:
    at_read_committed = engine.execution_options(isolation_level="READ COMMITTED")
    with LockingSession(at_read_committed) as session:
        session.get_one_entity(Order, 1, LockOptions.SnapshotRead)
        assert not sees_commits(session.connection(), elsewhere)
        session.commit()
        assert sees_commits(session.connection(), elsewhere)


def test_a_connection_that_was_lent(engine: sa.Engine, elsewhere: Run) -> None:
    with engine.connect() as lent:
        with LockingSession(lent) as session:
            session.get_one_entity(Order, 1, ForUpdate)
            assert sees_commits(lent, elsewhere)
            session.commit()
        assert not sees_commits(lent, elsewhere)


def test_a_connection_that_was_lost(
    engine: sa.Engine, session: LockingSession, documents: Database, elsewhere: Run
) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    number = session.connection().exec_driver_sql("SELECT CONNECTION_ID()").scalar_one()
    with documents.observer().connect() as observer:
        observer.exec_driver_sql(f"KILL {number}")
    with pytest.raises(DBAPIError):
        session.get_one_entity(Order, 2, ForUpdate)
    session.rollback()
    session.get_one_entity(Order, 1, ForUpdate)
    assert sees_commits(session.connection(), elsewhere)
    session.close()
    with engine.connect() as connection:
        assert not sees_commits(connection, elsewhere)


def test_a_transaction_that_a_listener_has_opened(session: LockingSession) -> None:
    def read(_session: object, _transaction: object, connection: sa.Connection) -> None:
        connection.scalar(NAME)

    sa.event.listen(session, "after_begin", read)
    with pytest.raises(WrongIsolation, match="a listener or the driver"):
        session.get_entity(Order, 1, ForUpdate)
    sa.event.remove(session, "after_begin", read)
    session.get_one_entity(Order, 1, ForUpdate)


@in_a_loop
async def test_a_task_that_was_cancelled(
    documents: Database, holder: LockingSession, elsewhere: Run
) -> None:
    holder.get_one_entity(Order, 1, ForUpdate)
    (driver,) = drivers_of(documents.column)
    url = url_for(documents, driver)
    async with connected(url, pool_size=1, max_overflow=0) as engine:
        async with AsyncLockingSession(engine) as session:
            await session.get_one_entity(Order, 2, ForUpdate)
            assert await session.run_sync(lambda one: sees_commits(one.connection(), elsewhere))
            await session.rollback()
            task = asyncio.create_task(session.get_entity(Order, 1, ForUpdate))
            await asyncio.wait([task], timeout=0.3)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        async with engine.connect() as connection:
            assert not await connection.run_sync(sees_commits, elsewhere)
