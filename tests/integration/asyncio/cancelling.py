"""Cancel a task in the middle of a play, and check what is left of it."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

import pytest

from sa_doclock import LockNotAvailable
from tests.integration.asyncio.bridge import Bridge, Play, playing
from tests.integration.asyncio.plays import lock_at_once, roll_back
from tests.support.actors import PATIENCE, Actor
from tests.support.waits import wait_until_blocked

Player = Actor[Any]


def state_of(player: Player) -> tuple[bool, int, int]:
    """Return whether the session is in a transaction, its locks, and its connections in use."""

    def ask(bridge: Bridge) -> tuple[bool, int, int]:
        session, pool = bridge.session, bridge.engine.pool
        in_use: int = pool.checkedout()  # type: ignore[attr-defined]
        return session.in_transaction(), len(session.held_locks), in_use

    return player.does(ask)


def is_free_soon(player: Player) -> bool:
    """Return whether order 1 can be locked.

    A server learns that a client which waited is gone only when it gives it the lock, which is
    then free at once.  A lock that has leaked stays.
    """
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            player.does(playing(lock_at_once))
        except LockNotAvailable:
            continue
        return True
    return False


class Stage:
    """A place where a play stops until it is cancelled, which the director can wait for."""

    def __init__(self) -> None:
        self._reached = threading.Event()

    async def stop(self) -> None:
        self._reached.set()
        await asyncio.Event().wait()

    def cancel(self, player: Player, play: Play[Any]) -> None:
        """Start the play; cancel it when it stops."""
        bridge = player.does(lambda bridge: bridge)
        step = player.starts(playing(play))
        assert self._reached.wait(PATIENCE)
        bridge.cancel()
        with pytest.raises(asyncio.CancelledError):
            step.result()


def cancel_while_waiting(waiter: Player, holder: Player, play: Play[Any]) -> None:
    """Start the play; cancel it when the server says that it waits.

    SQLite waits in a thread of the driver's, where nothing can stop it: the task ends with the
    wait, at the latest when the busy timeout is over.
    """
    bridge = waiter.does(lambda bridge: bridge)
    step = waiter.starts(playing(play))
    wait_until_blocked(waiter=waiter, holder=holder, step=step)
    bridge.cancel()
    if holder.database.name == "sqlite":
        holder.does(playing(roll_back))
    with pytest.raises(asyncio.CancelledError):
        step.result()


class CancelledAt:
    """A coroutine whose task is cancelled where it waits for the n-th time."""

    def __init__(self, coroutine: Coroutine[Any, Any, object], number: int) -> None:
        self._coroutine, self._number = coroutine, number
        self.waits = 0

    def __await__(self) -> Generator[Any, Any, object]:
        steps = self._coroutine.__await__()
        go_on: Callable[[], Any] = partial(next, steps)
        while True:
            try:
                future = go_on()
            except StopIteration as end:
                return end.value
            self.waits += 1
            task = asyncio.current_task()
            if self.waits == self._number and task is not None:
                task.cancel()
            go_on = partial(next, steps)
            try:
                yield future
            except BaseException as error:  # noqa: BLE001  # the coroutine's to handle
                go_on = partial(steps.throw, error)


async def outcomes_of_cancelling(play: Callable[[], Coroutine[Any, Any, object]]) -> list[object]:
    """Cancel a play at each of its waits in turn; return what came out in place of CancelledError."""
    wrong: list[object] = []
    for number in itertools.count(1):
        cancelled = CancelledAt(play(), number)

        async def run(played: CancelledAt = cancelled) -> None:
            await played

        task = asyncio.create_task(run())
        await asyncio.wait([task])
        if cancelled.waits < number:
            task.result()
            return wrong
        if not task.cancelled():
            wrong.append((number, task.exception()))
    raise AssertionError
