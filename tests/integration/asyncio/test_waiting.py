"""Two asynchronous sessions at one document: who waits, for how long, and what is raised."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from sa_doclock import AsyncLockingSession, DeadlockDetected, LockNotAvailable, LockOptions
from tests.integration.asyncio.bridge import Play, playing
from tests.integration.asyncio.plays import (
    FOR_UPDATE,
    NO_WAIT,
    SHARED,
    SNAPSHOT,
    add_ten,
    locks,
    reads,
    roll_back,
    save,
)
from tests.support.actors import PATIENCE, Actor
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


# On SQL Server a reader is in a SNAPSHOT transaction, and waits for nobody.
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
    assert isinstance(error, OperationalError)  # asyncpg's own is a bare DBAPIError
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
