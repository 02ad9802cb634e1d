"""lock_key(), awaited: it waits, is refused and cancelled, and leaves nothing on the connection."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from sa_doclock import AsyncLockingSession, LockNotAvailable
from tests.integration.asyncio.bridge import playing
from tests.integration.asyncio.cancelling import Player, Stage, cancel_while_waiting, state_of
from tests.integration.asyncio.plays import roll_back, save
from tests.support.waits import wait_until_blocked

KEY = "user:42"
FREE = (False, 0, 0)


async def take(session: AsyncLockingSession) -> None:
    await session.lock_key(KEY)


async def take_at_once(session: AsyncLockingSession) -> None:
    await session.lock_key(KEY, lock_timeout=0)
    await session.rollback()


def is_free(player: Player) -> bool:
    """Return whether the key can be had.

    A server learns that a client which waited is gone only when it gives it the lock.
    """
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            player.does(playing(take_at_once))
        except LockNotAvailable:
            continue
        return True
    return False


def test_the_second_waits_for_the_end_of_the_first(ann: Player, ben: Player) -> None:
    for end in (save, roll_back):
        ann.does(playing(take))
        queued = ben.starts(playing(take))
        wait_until_blocked(waiter=ben, holder=ann, step=queued)
        ann.does(playing(end))
        queued.result()
        ben.does(playing(end))


def test_it_gets_an_error_after_that_time(ann: Player, ben: Player) -> None:
    async def take_soon(session: AsyncLockingSession) -> None:
        await session.lock_key(KEY, lock_timeout=0.2)

    ann.does(playing(take))
    with pytest.raises(LockNotAvailable, match=r"'user:42' FOR UPDATE on .* within 0\.2 s"):
        ben.does(playing(take_soon))
    assert state_of(ben) == FREE
    ann.does(playing(save))
    ben.does(playing(take_soon))


def test_cancelled_while_it_waits(
    ann: Player, ben: Player, enter_async: Callable[[str], Player]
) -> None:
    ann.does(playing(take))
    cancel_while_waiting(ben, ann, take)
    assert state_of(ben) == FREE
    ann.does(playing(roll_back))
    assert is_free(enter_async("cleo"))


def test_cancelled_while_it_is_held(ben: Player, enter_async: Callable[[str], Player]) -> None:
    stage = Stage()

    async def stop_with_it(session: AsyncLockingSession) -> None:
        async with session.begin():
            await session.lock_key(KEY)
            await stage.stop()

    stage.cancel(ben, stop_with_it)
    assert state_of(ben) == FREE
    assert is_free(enter_async("cleo"))
