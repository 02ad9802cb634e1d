"""Two asynchronous sessions, one document: who waits, for how long, and which error is raised."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

import sa_doclock
from sa_doclock import (
    AsyncLockingSession,
    DeadlockDetected,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
)
from sa_doclock.features import diagnosis
from tests.integration.asyncio.drivers import connected, in_a_loop
from tests.integration.asyncio.plays import (
    FOR_UPDATE,
    NO_WAIT,
    SHARED,
    SNAPSHOT,
    Play,
    add_ten,
    locks,
    playing,
    reads,
    roll_back,
    save,
)
from tests.integration.monitoring.steps import side_connections, wait_until_reported
from tests.support.actors import PATIENCE, Actor
from tests.support.databases import Database
from tests.support.models import Order
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.quick


Player = Actor[Any]


def test_the_second_waits_and_sees_what_the_first_wrote(ann: Player, ben: Player) -> None:
    ann.does(playing(add_ten))
    queued = ben.starts(playing(add_ten))
    wait_until_blocked(waiter=ben, holder=ann, step=queued)
    ann.does(playing(save))
    assert queued.result() == (50, [30, 20])


def test_the_second_sees_the_old_state_when_the_first_gives_up(ann: Player, ben: Player) -> None:
    ann.does(playing(add_ten))
    queued = ben.starts(playing(add_ten))
    wait_until_blocked(waiter=ben, holder=ann, step=queued)
    ann.does(playing(roll_back))
    assert queued.result() == (40, [20, 20])


# On SQL Server a reader uses a SNAPSHOT transaction, and waits for no writer.
@pytest.mark.not_databases("sqlite", "mssql")
def test_a_reader_waits_for_a_writer(ann: Player, ben: Player) -> None:
    ann.does(playing(add_ten))
    queued = ben.starts(reads(SHARED))
    wait_until_blocked(waiter=ben, holder=ann, step=queued)
    ann.does(playing(save))
    assert queued.result() == (40, [20, 20])


def test_readers_do_not_wait_for_each_other(ann: Player, ben: Player) -> None:
    assert ann.does(reads(SHARED)) == ben.does(reads(SHARED)) == (30, [10, 20])


def test_a_snapshot_waits_for_nobody_and_shows_what_is_saved(ann: Player, ben: Player) -> None:
    ann.does(playing(add_ten))
    assert ben.does(reads(SNAPSHOT)) == (30, [10, 20])
    ben.does(playing(roll_back))
    ann.does(playing(save))
    assert ben.does(reads(SNAPSHOT)) == (40, [20, 20])


LIMITS = {"NoWait": None, "0 s": 0, "0.2 s": 0.2}
each_limit = pytest.mark.parametrize("seconds", LIMITS.values(), ids=LIMITS)


@each_limit
def test_a_writer_that_does_not_wait_that_long_gets_an_error(
    ann: Player, ben: Player, seconds: float | None
) -> None:
    check_it_gets_an_error(ann, ben, FOR_UPDATE, seconds)


@pytest.mark.not_databases("sqlite", "mssql")
@each_limit
def test_a_reader_that_does_not_wait_that_long_gets_an_error(
    ann: Player, ben: Player, seconds: float | None
) -> None:
    check_it_gets_an_error(ann, ben, SHARED, seconds)


def check_it_gets_an_error(
    ann: Player, ben: Player, lock: LockOptions, seconds: float | None
) -> None:
    ann.does(playing(add_ten))
    with pytest.raises(LockNotAvailable, match="Order 1 ") as caught:
        ben.does(reads(lock | NO_WAIT if seconds is None else lock, seconds))
    error = caught.value
    assert isinstance(error, OperationalError)  # asyncpg's own error is a bare DBAPIError
    assert error.orig is not None
    assert error.retryable
    assert not error.connection_invalidated
    ann.does(playing(save))
    assert ben.does(reads(FOR_UPDATE)) == (40, [20, 20])


async def by_get_entity(session: AsyncLockingSession) -> None:
    await session.get_entity(Order, 1, FOR_UPDATE, lock_timeout=0)


async def by_get_one_entity(session: AsyncLockingSession) -> None:
    await session.get_one_entity(Order, 1, FOR_UPDATE, lock_timeout=0)


async def by_a_block(session: AsyncLockingSession) -> None:
    async with session.locked(Order, 1, lock_timeout=0):
        pytest.fail("the block was entered")


@pytest.mark.parametrize("play", [by_get_entity, by_get_one_entity, by_a_block])
def test_every_method_takes_the_limit(ann: Player, ben: Player, play: Play[None]) -> None:
    ann.does(playing(add_ten))
    with pytest.raises(LockNotAvailable, match="FOR UPDATE NOWAIT"):
        ben.does(playing(play))


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_a_deadlock_has_a_victim_that_gets_an_error(ann: Player, ben: Player) -> None:
    ann.does(playing(locks(1)))
    ben.does(playing(locks(2)))
    queued = ben.starts(playing(locks(1)))
    wait_until_blocked(waiter=ben, holder=ann, step=queued)
    crossed = ann.starts(playing(locks(2)))
    failures = [step.exception() for step in (queued, crossed)]
    (failure,) = [failure for failure in failures if failure is not None]
    assert isinstance(failure, DeadlockDetected)
    assert failure.retryable


def test_a_loop_that_waits_for_a_lock_does_other_work(ann: Player, ben: Player) -> None:
    other_work, done = asyncio.Event(), threading.Event()

    async def do_both(session: AsyncLockingSession) -> int:
        waiting = asyncio.ensure_future(locks(1)(session))
        await other_work.wait()
        assert not waiting.done()
        done.set()
        order: Order = await waiting
        return order.total

    ann.does(playing(add_ten))
    bridge = ben.does(lambda bridge: bridge)
    queued = ben.starts(playing(do_both))
    wait_until_blocked(waiter=ben, holder=ann, step=queued)
    bridge.loop.call_soon_threadsafe(other_work.set)
    assert done.wait(PATIENCE)
    ann.does(playing(roll_back))
    assert queued.result() == 30


# --------------------------------------------------------------------------------------------------
# An asynchronous session reports who holds a refused lock; async_lock_waits() reports who waits.

MANY = 40
ONE_ONLY = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 2}


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@in_a_loop
async def test_the_holder_is_reported(ann: Player, url: sa.URL) -> None:
    ann.does(playing(add_ten))
    mine = ann.connection_id()
    async with (
        connected(url, **ONE_ONLY) as engine,
        AsyncLockingSession(engine, diagnose=True) as session,
    ):
        found: list[int] = []
        for _ in range(80):  # MariaDB answers from a copy: see tests/support/waits.py
            with pytest.raises(LockNotAvailable) as caught:
                await session.get_entity(Order, 1, FOR_UPDATE, lock_timeout=0)
            found = [one.connection_id for one in caught.value.blockers]
            if found == [mine]:
                break
            threading.Event().wait(0.12)
        assert found == [mine]
        assert f"held by connection {mine}" in str(caught.value)


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@in_a_loop
async def test_a_wait_is_reported(ann: Player, ben: Player, url: sa.URL) -> None:
    ann.does(playing(add_ten))
    queued = ben.starts(reads(FOR_UPDATE))
    wait_until_blocked(waiter=ben, holder=ann, step=queued)
    async with connected(url, **ONE_ONLY) as engine, engine.connect() as connection:
        for bind in (engine, connection):
            waits = await sa_doclock.async_lock_waits(bind)
            pairs = [
                (wait.waiter.connection_id, wait.blocker.connection_id)
                for wait in waits
                if wait.waiter.connection_id == ben.connection_id()  # the server may list others
            ]
            assert pairs == [(ben.connection_id(), ann.connection_id())]
    ann.does(playing(roll_back))
    queued.result()


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@in_a_loop
async def test_forty_tasks_that_give_up_open_one_connection(
    database: Database, ann: Player, url: sa.URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SHARED_FOR", "PATIENCE"):  # however slow the machine
        monkeypatch.setattr(diagnosis, name, 2 * PATIENCE)
    ann.does(playing(add_ten))
    wait_until_reported(database, ann)

    async def give_up(session: AsyncLockingSession) -> LockNotAvailable:
        with pytest.raises(LockNotAvailable) as caught:
            await session.get_entity(Order, 1, FOR_UPDATE, lock_timeout=0.1)
        return caught.value

    async with connected(url, pool_size=MANY, max_overflow=0) as engine:
        sessions = [AsyncLockingSession(engine, diagnose=True) for _ in range(MANY)]
        for session in sessions:
            await session.connection()
        for session in sessions:
            await session.rollback()
        with side_connections(engine.sync_engine, 1) as seen:
            errors = await asyncio.gather(*(give_up(session) for session in sessions))
        for session in sessions:
            await session.close()
    assert seen == ["made", "closed"]
    assert all(error.blockers for error in errors)


@pytest.mark.databases("sqlite")
@in_a_loop
async def test_sqlite_has_nobody_to_ask(url: sa.URL) -> None:
    async with connected(url) as engine:
        with pytest.raises(LockNotSupported, match="not supported on sqlite"):
            await sa_doclock.async_lock_waits(engine)
        bad: Any = engine.sync_engine
        with pytest.raises(TypeError, match="needs an AsyncEngine or an AsyncConnection"):
            await sa_doclock.async_lock_waits(bad)
