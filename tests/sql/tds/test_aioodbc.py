"""aioodbc waits for a lock in a thread, and has as many threads as its executor.

Where all of them wait, the commit that would let the first one go on has no thread to run in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any
from urllib.parse import quote_plus

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from sa_doclock import LockOptions
from sa_doclock.asyncio import AsyncLockingSession
from tests.sql.models import Order
from tests.sql.tds.python_drivers import python_driver
from tests.sql.tds.server import TDSServer

WAITERS = 12
PATIENCE = 20

# Threads that wait in the driver end with the process alone.  The time of a download does not count.
pytestmark = pytest.mark.timeout(6 * PATIENCE, method="thread", func_only=True)


@pytest.fixture
def url(connection_string: str, wire: TDSServer) -> str:
    """Give the URL of a server with one row that can be locked."""
    python_driver("aioodbc")
    wire.database.row = Lock()
    return f"mssql+aioodbc:///?odbc_connect={quote_plus(connection_string)}"


async def _change(engine: AsyncEngine) -> None:
    async with AsyncLockingSession(engine) as session:
        order = await session.get_one_entity(Order, 1, LockOptions.ForUpdate)
        order.total += 1
        await session.save_changes()


async def _queue_behind(
    engine: AsyncEngine, wire: TDSServer, waiters: int, act: Callable[[], Awaitable[None]]
) -> None:
    """Hold the lock until so many others wait for it, as the server says; then act and let it go."""
    async with AsyncLockingSession(engine) as holder:
        await holder.get_one_entity(Order, 1, LockOptions.ForUpdate)
        others = [asyncio.create_task(_change(engine)) for _ in range(waiters)]
        own = ThreadPoolExecutor(1)  # not one of the driver's threads
        for _ in others:
            await asyncio.get_running_loop().run_in_executor(own, _see_one_wait, wire)
        own.shutdown()
        await act()
        await holder.save_changes()
    await asyncio.gather(*others)


def _see_one_wait(wire: TDSServer) -> None:
    assert wire.database.waiters.acquire(timeout=PATIENCE), "not so many wait"


async def _nothing() -> None:
    pass


def _engine(url: str, **options: Any) -> AsyncEngine:
    return create_async_engine(url, pool_size=WAITERS + 1, max_overflow=0, **options)


@pytest.mark.slow
def test_with_a_thread_for_each_connection_the_queue_moves_on(url: str, wire: TDSServer) -> None:
    async def run() -> None:
        threads = ThreadPoolExecutor(WAITERS + 1)
        engine = _engine(url, connect_args={"executor": threads})
        await _queue_behind(engine, wire, WAITERS, _nothing)
        await engine.dispose()
        threads.shutdown(wait=False)  # those that still wait end with the server

    asyncio.run(run())
    assert sum("UPDATE shop_order" in str(one) for one in wire.sent) == WAITERS


def test_with_fewer_the_commit_of_the_holder_finds_no_thread(url: str, wire: TDSServer) -> None:
    """All threads wait at the server, so that what is queued in front of them cannot begin."""

    async def run() -> None:
        threads = ThreadPoolExecutor(2)
        engine = _engine(url, connect_args={"executor": threads})

        async def see_what_is_queued() -> None:
            behind = threads.submit(int)  # as the commit that follows would be
            assert behind.cancel()  # no thread has begun it
            assert wire.database.row is not None
            wire.database.row.release()  # as by an error of the holder at the server
            wire.sessions[_holder(wire)].holds_row = False

        await _queue_behind(engine, wire, 2, see_what_is_queued)
        await engine.dispose()
        threads.shutdown(wait=False)

    asyncio.run(run())


def _holder(wire: TDSServer) -> int:
    return next(number for number, one in enumerate(wire.sessions) if one.holds_row)
