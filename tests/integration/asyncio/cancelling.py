"""Cancel a task in the middle of a play, and check what is left of it."""

from __future__ import annotations

import asyncio
import threading
import time
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
