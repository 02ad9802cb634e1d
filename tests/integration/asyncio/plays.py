"""Asynchronous sessions as actors: each runs plays in a loop, as tasks that can be cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import selectinload
from sqlalchemy.pool import AsyncAdaptedQueuePool

from sa_doclock import AsyncLockingSession, LockOptions
from tests.integration.asyncio.drivers import PATIENT
from tests.support.actors import PATIENCE, Actor
from tests.support.databases import Database
from tests.support.models import Customer, Order
from tests.support.waits import wait_until_blocked

FOR_UPDATE, NO_WAIT, SNAPSHOT = LockOptions.ForUpdate, LockOptions.NoWait, LockOptions.SnapshotRead


# --------------------------------------------------------------------------------------------------
# An asynchronous session with its own event loop, which an actor plays in its thread.

T = TypeVar("T")
Play = Callable[[AsyncLockingSession], Awaitable[T]]


class Bridge:
    """The object that an asynchronous actor uses in place of a session.

    The pool holds one connection, so that a test notices a connection leaked by a cancelled task.
    """

    engine: AsyncEngine
    session: AsyncLockingSession

    def __init__(self, url: sa.URL, database: Database) -> None:
        self._url, self._database = url, database
        self._task: asyncio.Task[Any] | None = None

    def __enter__(self) -> Bridge:  # noqa: PYI034  # Self came with Python 3.11
        self.loop = asyncio.new_event_loop()
        options = PATIENT.get(self._url.get_backend_name(), {})
        self.engine = create_async_engine(
            self._url,
            poolclass=AsyncAdaptedQueuePool,  # aiosqlite's pool since SQLAlchemy 2.0.38
            pool_size=1,
            max_overflow=0,
            pool_timeout=5,
            **options,
        )
        self._database.connections.watch(self.engine.sync_engine)
        if self._database.name == "sqlite":
            event.listen(self.engine.sync_engine, "connect", self._trace)
        self.session = AsyncLockingSession(self.engine)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.run_until_complete(self.session.close())
        self.loop.run_until_complete(self.engine.dispose())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def plays(self, action: Play[T]) -> T:
        """Run ``action(session)`` to its end, in the actor's thread."""

        async def play() -> T:
            return await action(self.session)

        task = self.loop.create_task(play())
        self._task = task
        return self.loop.run_until_complete(task)

    def cancel(self) -> None:
        """Cancel the current play, from the director's thread."""
        assert self._task is not None
        self.loop.call_soon_threadsafe(self._task.cancel)

    def _trace(self, connection: Any, _: object) -> None:
        # The driver runs SQLite in a thread; waits.py looks for the actor's thread.
        actor, begun = threading.get_ident(), self._database.connections._statements

        def note(statement: str) -> None:
            begun[actor] = statement

        connection.run_async(lambda driver: driver.set_trace_callback(note))


def playing(action: Play[T]) -> Callable[[Bridge], T]:
    """Make an actor's step: ``ann.does(playing(lambda session: ...))``."""
    return lambda bridge: bridge.plays(action)


# --------------------------------------------------------------------------------------------------
# The actions of asynchronous actors, as the tests name them.

SHARED = LockOptions.SharedRead
WITH_LINES = (selectinload(Order.lines),)

Seen = tuple[int, list[int]]
"""The total of order 1, and the values of its lines."""


def seen(order: Order) -> Seen:
    return order.total, [line.value for line in order.lines]


async def add_ten(session: AsyncLockingSession) -> Seen:
    """Lock order 1 and add 10 to it and to its first line, without a commit."""
    order = await session.get_one_entity(Order, 1, FOR_UPDATE, options=WITH_LINES)
    order.total += 10
    order.lines[0].value += 10
    await session.flush()
    return seen(order)


def reads(lock: LockOptions, lock_timeout: float | None = None) -> Callable[[Bridge], Seen]:
    """Make the step that locks order 1, then reads it and its lines."""

    async def read(session: AsyncLockingSession) -> Seen:
        return seen(
            await session.get_one_entity(
                Order, 1, lock, lock_timeout=lock_timeout, options=WITH_LINES
            )
        )

    return playing(read)


def locks(ident: int) -> Callable[[AsyncLockingSession], Awaitable[Order]]:
    """Make the play that waits for the lock of this order."""
    return lambda session: session.get_one_entity(Order, ident, FOR_UPDATE)


async def lock_at_once(session: AsyncLockingSession) -> int:
    """Lock order 1 without waiting, and release it; return its total."""
    total = (await session.get_one_entity(Order, 1, FOR_UPDATE | NO_WAIT)).total
    await session.rollback()
    return total


async def look(session: AsyncLockingSession) -> str:
    """Read a row that no session locks."""
    return (await session.get_one(Customer, 1)).name


async def save(session: AsyncLockingSession) -> None:
    await session.save_changes()


async def roll_back(session: AsyncLockingSession) -> None:
    await session.rollback()


# --------------------------------------------------------------------------------------------------
# Cancels a task in the middle of a play and checks what remains.

Player = Actor[Any]


def state_of(player: Player) -> tuple[bool, int, int]:
    """Return whether the session is in a transaction, its locks, and its connections in use."""

    def ask(bridge: Bridge) -> tuple[bool, int, int]:
        session, pool = bridge.session, bridge.engine.pool
        in_use: int = pool.checkedout()  # type: ignore[attr-defined]
        return session.in_transaction(), len(session.held_locks), in_use

    return player.does(ask)


class Stage:
    """A place where a play stops until it is cancelled; the director can wait for that."""

    def __init__(self) -> None:
        self._reached = threading.Event()

    async def stop(self) -> None:
        self._reached.set()
        await asyncio.Event().wait()

    def cancel(self, player: Player, play: Play[Any]) -> None:
        """Start the play, and cancel it when it stops."""
        bridge = player.does(lambda bridge: bridge)
        step = player.starts(playing(play))
        assert self._reached.wait(PATIENCE)
        bridge.cancel()
        with pytest.raises(asyncio.CancelledError):
            step.result()


def cancel_while_waiting(waiter: Player, holder: Player, play: Play[Any]) -> None:
    """Start the play, and cancel it when the server reports that it waits.

    SQLite waits in a thread of the driver, which nothing can stop: the task ends with the wait,
    when the busy timeout expires at the latest.
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
    """A coroutine whose task is cancelled at its n-th wait."""

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
            except BaseException as error:  # noqa: BLE001  # for the coroutine to handle
                go_on = partial(steps.throw, error)
