"""Each driver: whether it is available, the statements that it sends, the errors that it raises."""

from __future__ import annotations

import asyncio
import platform
import re
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import quote_plus

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from lab.servers.debian import unpacked_alone
from lab.servers.model import UnavailableError
from lab.tds import drivers, python_drivers
from lab.tds.engines import ENGINES
from lab.tds.python_drivers import python_driver
from lab.tds.server import TDSServer, said
from sa_doclock import (
    DeadlockDetected,
    DocLockError,
    LockFailed,
    LockingSession,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    SnapshotConflict,
    WrongIsolation,
)
from sa_doclock.asyncio import AsyncLockingSession
from sa_doclock.dialects import strategy_for
from tests.sql.models import Customer, Order
from tests.sql.test_mssql_errors import known_numbers

# --------------------------------------------------------------------------------------------------
# Each driver's form of the server's error numbers becomes our error classes.

FAILURES: dict[int, type[LockFailed]] = {
    1222: LockNotAvailable,
    1205: DeadlockDetected,
    3960: SnapshotConflict,
}
REFUSALS: dict[int, type[DocLockError]] = {3951: WrongIsolation, 3953: LockNotSupported}
STATES = {
    0: "Run op.enable_snapshot_isolation",
    2: "is switching snapshot",
    3: "is switching snapshot",
}
each_failure = pytest.mark.parametrize(("number", "kind"), FAILURES.items(), ids=str)


def assert_locks_again(session: LockingSession, wire: TDSServer) -> None:
    """Lock again, in a transaction, and commit."""
    session.rollback()
    wire.sent.clear()
    assert session.get_one_entity(Order, 1, LockOptions.ForUpdate).id == 1
    (sent,) = said(wire, "UPDLOCK")
    assert sent.in_transaction
    session.commit()
    assert [sent.in_transaction for sent in said(wire, "commit")] == [True]


@each_failure
def test_a_lock_that_failed(
    session: LockingSession, wire: TDSServer, number: int, kind: type[LockFailed]
) -> None:
    wire.database.failures.append(("FROM shop_order", number))
    with pytest.raises(LockFailed, match=r"^Order 1 FOR UPDATE on mssql: ") as caught:
        session.get_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=0.3)
    assert type(caught.value) is kind
    assert caught.value.retryable
    assert f"({number})" in str(caught.value.orig)
    assert_locks_again(session, wire)


@each_failure
def test_in_a_transaction_that_has_read_before(
    session: LockingSession, wire: TDSServer, number: int, kind: type[LockFailed]
) -> None:
    session.get(Customer, 1)
    wire.database.failures.append(("FROM shop_order", number))
    with pytest.raises(kind):
        session.get_entity(Order, 1, LockOptions.ForUpdate)
    assert_locks_again(session, wire)


@each_failure
def test_a_flush_that_failed(
    session: LockingSession, wire: TDSServer, number: int, kind: type[LockFailed]
) -> None:
    wire.database.failures.append(("UPDATE shop_order", number))
    with pytest.raises(kind), session.locked(Order, 1) as order:
        order.total = 7
    assert_locks_again(session, wire)


@pytest.mark.parametrize(("number", "kind"), REFUSALS.items(), ids=str)
def test_a_snapshot_that_was_refused(
    session: LockingSession, wire: TDSServer, number: int, kind: type[DocLockError]
) -> None:
    wire.database.failures.append(("FROM shop_order", number))
    with pytest.raises(DocLockError) as caught:
        session.get_entity(Order, 1, LockOptions.SharedRead)
    assert type(caught.value) is kind
    assert not caught.value.retryable
    assert_locks_again(session, wire)


@pytest.mark.parametrize("state", STATES)
def test_a_database_that_does_not_allow_it(
    session: LockingSession, wire: TDSServer, state: int
) -> None:
    wire.database.snapshot = state
    with pytest.raises(LockNotSupported, match=STATES[state]) as caught:
        session.get_entity(Order, 1, LockOptions.SharedRead)
    assert not caught.value.retryable
    assert_locks_again(session, wire)


@pytest.mark.parametrize(("value", "kind"), [(-1, LockNotAvailable), (-3, DeadlockDetected)])
def test_a_named_lock_that_was_not_granted(
    session: LockingSession, wire: TDSServer, value: int, kind: type[LockFailed]
) -> None:
    wire.database.applock = value
    with pytest.raises(kind, match="named lock 'user:42' FOR UPDATE on mssql: "):
        session.lock_key("user:42", lock_timeout=0.3)
    assert_locks_again(session, wire)


def test_a_named_lock_is_the_transactions(session: LockingSession, wire: TDSServer) -> None:
    session.lock_key("user:42")
    assert wire.sessions[-1].applock == 0  # else -999


# --------------------------------------------------------------------------------------------------
# The statements that SQLAlchemy sends over each driver, and the number in the driver's error.


@pytest.fixture
def engine_every_driver(any_driver: str, wire: TDSServer) -> Iterator[Engine]:
    """Provide an engine for each driver."""
    engine = ENGINES[any_driver](wire.port, pool_size=1, max_overflow=0)
    strategy_for(engine)
    yield engine
    engine.dispose()


def test_each_known_number_is_found_in_what_the_driver_itself_raises(
    engine_every_driver: Engine, wire: TDSServer
) -> None:
    strategy, found = strategy_for(engine_every_driver), {}
    for number in sorted(known_numbers()):
        with engine_every_driver.connect() as connection:
            wire.database.failures.append(("FROM shop_customer", number))
            with pytest.raises(DBAPIError) as caught:
                connection.execute(select(Customer.__table__))
            assert caught.value.orig is not None
            found[number] = strategy.errors[strategy.errors.native_code(caught.value.orig)]
            connection.invalidate()  # its transaction may be gone
    assert found == {number: strategy.errors[number] for number in found}


# --------------------------------------------------------------------------------------------------
# An unavailable driver is reported with the reason, and nothing half-built remains.


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Simulate a new machine of the kind that has the drivers, without a network."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(drivers, "pyodbc", object)
    monkeypatch.setenv("SA_DOCLOCK_TEST_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")


@pytest.mark.usefixtures("elsewhere")
def test_microsofts_on_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UnavailableError, match="Linux on x86_64"):
        drivers.odbc18(0)


@pytest.mark.usefixtures("elsewhere")
def test_microsofts_where_nothing_proprietary_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "cached", pytest.fail)  # not even from the cache
    monkeypatch.setenv("SA_DOCLOCK_TEST_PROPRIETARY", "no")
    with pytest.raises(UnavailableError, match="PROPRIETARY=no, and Microsoft's ODBC driver is"):
        drivers.odbc18(0)


@pytest.mark.usefixtures("elsewhere")
def test_microsofts_is_announced() -> None:
    pinned = re.search(r"^([\w-]+)==(\S+)", drivers.WHEELS.read_text("utf-8"), re.MULTILINE)
    assert pinned is not None
    assert f"{pinned[1]} {pinned[2]}" in str(drivers.DOWNLOAD)


@pytest.mark.usefixtures("elsewhere")
def test_the_python_drivers_are_announced() -> None:
    pinned = re.findall(r"^([\w-]+)==(\S+)", python_drivers.WHEELS.read_text("utf-8"), re.MULTILINE)
    announced = [one.what for one in python_drivers.DOWNLOADS]
    assert announced == [f"{name} {version}" for name, version in pinned]


@pytest.mark.usefixtures("elsewhere")
def test_they_are_not_to_be_had_on_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(python_drivers, "find_spec", lambda _: None)
    with pytest.raises(UnavailableError, match="pymssql: of its wheels, those for Linux"):
        python_drivers._folder("pymssql")


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.slow
@pytest.mark.exhaustive
def test_microsofts_without_a_network(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="No matching distribution found for mssql-python"):
        drivers.odbc18(0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("elsewhere")
def test_debians_on_another_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(UnavailableError, match="tdsodbc can only be unpacked on Debian"):
        unpacked_alone("tdsodbc", licence="LGPL-2.1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("elsewhere")
def test_a_library_that_does_not_load(tmp_path: Path) -> None:
    broken = tmp_path / "libbroken.so"
    broken.write_bytes(b"no library")
    with pytest.raises(UnavailableError, match="libbroken"):
        drivers._loaded(broken)


# --------------------------------------------------------------------------------------------------
# aioodbc waits for a lock in a thread, and has as many threads as its executor.
#
# If all of them wait, the commit that would release the first one has no thread to run in.

WAITERS = 12
PATIENCE = 20

# Threads that wait in the driver end only with the process.  Download time does not count.


@pytest.fixture
def url(connection_string: str, wire: TDSServer) -> str:
    """Provide the URL of a server with one row to lock."""
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
    """Hold the lock until the server reports this number of waiters; then act and release it."""
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


@pytest.mark.timeout(6 * PATIENCE, method="thread", func_only=True)
@pytest.mark.slow
def test_with_a_thread_for_each_connection_the_queue_moves_on(url: str, wire: TDSServer) -> None:
    async def run() -> None:
        threads = ThreadPoolExecutor(WAITERS + 1)
        engine = _engine(url, connect_args={"executor": threads})
        await _queue_behind(engine, wire, WAITERS, _nothing)
        await engine.dispose()
        threads.shutdown(wait=False)  # remaining waiters end with the server

    asyncio.run(run())
    assert sum("UPDATE shop_order" in str(one) for one in wire.sent) == WAITERS


@pytest.mark.timeout(6 * PATIENCE, method="thread", func_only=True)
def test_with_fewer_the_commit_of_the_holder_finds_no_thread(url: str, wire: TDSServer) -> None:
    """All threads wait at the server, so the queued calls cannot begin."""

    async def run() -> None:
        threads = ThreadPoolExecutor(2)
        engine = _engine(url, connect_args={"executor": threads})

        async def see_what_is_queued() -> None:
            behind = threads.submit(int)  # as the commit that follows would be
            assert behind.cancel()  # no thread began it
            assert wire.database.row is not None
            wire.database.row.release()  # as an error of the holder at the server would
            wire.sessions[_holder(wire)].holds_row = False

        await _queue_behind(engine, wire, 2, see_what_is_queued)
        await engine.dispose()
        threads.shutdown(wait=False)

    asyncio.run(run())


def _holder(wire: TDSServer) -> int:
    return next(number for number, one in enumerate(wire.sessions) if one.holds_row)
