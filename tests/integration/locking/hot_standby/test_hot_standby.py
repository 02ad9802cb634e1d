"""A streaming standby of PostgreSQL: it refuses every lock, says what to do, and gives snapshots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from sa_doclock import AsyncLockingSession, LockingSession, LockNotSupported, LockOptions
from tests.integration.asyncio.drivers import drivers_of
from tests.integration.locking.standby import Replication, replication, replications
from tests.integration.locking.steps import FIRST, reads
from tests.support.databases import Database
from tests.support.models import Order

__all__ = ["replication", "replications"]

pytestmark = pytest.mark.databases("postgresql")

SnapshotRead = LockOptions.SnapshotRead
ROWS = "a standby server cannot lock rows. Lock on the primary, or read with SnapshotRead"
KEYS = "a standby server does not know the named locks .* Take the lock on the primary"


@pytest.fixture
def session(replication: Replication) -> Iterator[LockingSession]:
    """Open a session on a standby that has the same rows."""
    with LockingSession(replication.standby) as session:
        yield session


CALLS: dict[str, Callable[[LockingSession, LockOptions], Any]] = {
    "get_entity": lambda session, lock: session.get_entity(Order, 1, lock),
    "get_entities": lambda session, lock: session.get_entities(Order, [1, 2], lock),
    "get_document": lambda session, lock: session.get_document(Order, 1, lock),
    "entity_set": lambda session, lock: session.scalars(session.entity_set(Order, lock)).all(),
    "locked": lambda session, lock: session.locked(Order, 1, lock).__enter__(),
}


@pytest.mark.parametrize("lock", [LockOptions.ForUpdate, LockOptions.SharedRead])
@pytest.mark.parametrize("call", CALLS)
def test_no_lock_is_granted_there(session: LockingSession, call: str, lock: LockOptions) -> None:
    with pytest.raises(LockNotSupported, match=f"Order .*{ROWS}") as caught:
        CALLS[call](session, lock)
    assert not caught.value.retryable
    assert not session.in_transaction()
    assert not session.held_locks


@pytest.mark.parametrize("call", CALLS)
def test_a_snapshot_is(session: LockingSession, call: str) -> None:
    assert CALLS[call](session, SnapshotRead)
    session.rollback()


@pytest.mark.parametrize("how", [{}, {"lock_timeout": 0}, {"lock_timeout": 5}, {"shared": True}])
def test_no_key_is_taken_there(session: LockingSession, how: dict[str, Any]) -> None:
    with pytest.raises(LockNotSupported, match=f"'a key' .*{KEYS}"):
        session.lock_key("a key", **how)
    assert not session.in_transaction()
    advisory = sa.text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
    assert session.scalar(advisory) == 0


def test_a_transaction_goes_on_after_a_rollback_alone(session: LockingSession) -> None:
    with session.begin():
        raw = session.connection().connection.dbapi_connection
        assert raw is not None
        with pytest.raises(LockNotSupported):
            session.get_entity(Order, 1, LockOptions.SharedRead)
        with pytest.raises(session.get_bind().dialect.loaded_dbapi.Error):  # docs/errors.md
            raw.cursor().execute("SELECT 1")
        session.rollback()
    assert reads(SnapshotRead)(session) == FIRST
    session.release_locks()
    assert session.get_one_entity(Order, 1).total == 30


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_under_asyncio_too(database: Database, replication: Replication, driver: str) -> None:
    if driver not in drivers_of(database.column):
        pytest.skip("a session with pipeline=True needs psycopg")
    url = replication.standby.url.set(drivername=f"postgresql+{driver}")

    async def main() -> None:
        engine = create_async_engine(url)
        async with AsyncLockingSession(engine) as session:
            for lock in (LockOptions.ForUpdate, LockOptions.SharedRead):
                with pytest.raises(LockNotSupported, match=ROWS):
                    await session.get_entity(Order, 1, lock)
            with pytest.raises(LockNotSupported, match=KEYS):
                await session.lock_key("a key")
            order = await session.get_document(Order, 1, SnapshotRead)
            assert order is not None
            assert [line.value for line in order.lines] == [10, 20]
        await engine.dispose()

    asyncio.run(main())
