"""A snapshot on a standby that is in the way of what the primary sends: SnapshotConflict."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import InterfaceError, InternalError, PendingRollbackError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import sessionmaker

from sa_doclock import (
    AsyncLockingSession,
    LockingSession,
    LockOptions,
    SnapshotConflict,
    run_transaction,
)
from tests.integration.asyncio.drivers import drivers_of
from tests.integration.locking.standby import Replication, replication, replications
from tests.integration.locking.steps import add_ten
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Order

__all__ = ["replication", "replications"]

pytestmark = pytest.mark.databases("postgresql")

SnapshotRead = LockOptions.SnapshotRead

_SNAPSHOTS = (
    "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' "
    "AND backend_xmin IS NOT NULL AND pid <> pg_backend_pid()"
)


@pytest.fixture
def conflicts(replication: Replication) -> Replication:
    """Let nobody on the standby keep the recovery waiting."""
    replication.set("max_standby_streaming_delay", "0")
    return replication


@pytest.fixture
def session(conflicts: Replication) -> Iterator[LockingSession]:
    """Open a session on the standby."""
    with LockingSession(conflicts.standby) as session:
        yield session


def clean_up_behind(replication: Replication) -> None:
    """Change order 1 on the primary, and take away what snapshots of before need."""
    with LockingSession(replication.primary) as writer:
        add_ten(writer)
        writer.save_changes()
    primary = replication.primary.execution_options(isolation_level="AUTOCOMMIT")
    standby = replication.standby.execution_options(isolation_level="AUTOCOMMIT")
    deadline = time.monotonic() + 30
    with primary.connect() as cleaning, standby.connect() as asking:
        while asking.exec_driver_sql(_SNAPSHOTS).scalar():
            assert time.monotonic() < deadline
            cleaning.exec_driver_sql("VACUUM lk_order, lk_line")  # leaves out what others pin
            replication.catch_up()


def test_a_statement_that_runs_is_canceled(
    conflicts: Replication, session: LockingSession, alice: Actor[LockingSession]
) -> None:
    def read_slowly(_: LockingSession) -> None:
        session.get_one_entity(Order, 1, SnapshotRead)
        session.execute(sa.text("SELECT pg_sleep(300)"))

    reading = alice.starts(read_slowly)
    conflicts.wait_until(
        "SELECT count(*) = 1 FROM pg_stat_activity "
        "WHERE query = 'SELECT pg_sleep(300)' AND state = 'active'"
    )
    clean_up_behind(conflicts)
    error = reading.exception()
    assert isinstance(error, SnapshotConflict)
    assert error.retryable
    assert "conflict with recovery" in str(error.orig)
    with pytest.raises(PendingRollbackError):
        session.get(Order, 2)
    session.rollback()
    assert session.get_one_entity(Order, 1, SnapshotRead).total == 40


def test_of_a_transaction_that_is_idle_the_connection_is_ended(
    conflicts: Replication, session: LockingSession
) -> None:
    order = session.get_one_entity(Order, 1, SnapshotRead)
    clean_up_behind(conflicts)
    with pytest.raises(SnapshotConflict) as caught:
        order.lines  # noqa: B018
    assert caught.value.retryable
    assert not session.held_locks
    session.rollback()
    assert session.get_one_entity(Order, 1, SnapshotRead).total == 40


def test_run_transaction_reads_again(conflicts: Replication) -> None:
    runs: list[int] = []

    def report(session: LockingSession) -> tuple[int, list[int]]:
        order = session.get_one_entity(Order, 1, SnapshotRead)
        runs.append(order.total)
        if len(runs) == 1:
            clean_up_behind(conflicts)
        return order.total, [line.value for line in order.lines]

    factory = sessionmaker(conflicts.standby, class_=LockingSession)
    assert run_transaction(factory, report) == (40, [20, 20])
    assert runs == [30, 40]


def test_where_the_standby_waits_a_snapshot_stays_as_it_is(replication: Replication) -> None:
    replication.set("max_standby_streaming_delay", "-1")
    with LockingSession(replication.standby) as session:
        order = session.get_one_entity(Order, 1, SnapshotRead)
        with LockingSession(replication.primary) as writer:
            add_ten(writer)
            writer.save_changes()
        replication.catch_up()  # no VACUUM
        assert (order.total, [line.value for line in order.lines]) == (30, [10, 20])


@pytest.mark.parametrize(
    ("driver", "error"),
    # asyncpg tells nothing but that the connection is closed: InterfaceError; between the server's
    # last words and its end InternalError, "cannot switch to state 12".
    [("psycopg", SnapshotConflict), ("asyncpg", (InterfaceError, InternalError))],
    ids=["psycopg", "asyncpg"],
)
def test_under_asyncio_too(
    database: Database, conflicts: Replication, driver: str, error: Any
) -> None:
    if driver not in drivers_of(database.column):
        pytest.skip("a session with pipeline=True needs psycopg")
    url = conflicts.standby.url.set(drivername=f"postgresql+{driver}")

    async def main() -> None:
        engine = create_async_engine(url)
        async with AsyncLockingSession(engine) as session:
            await session.get_one_entity(Order, 1, SnapshotRead)
            await asyncio.to_thread(clean_up_behind, conflicts)
            with pytest.raises(error) as caught:
                await session.get_one(Order, 2)
            assert driver == "psycopg" or caught.value.connection_invalidated
            await session.rollback()
            assert (await session.get_one_entity(Order, 1, SnapshotRead)).total == 40
        await engine.dispose()

    asyncio.run(main())
