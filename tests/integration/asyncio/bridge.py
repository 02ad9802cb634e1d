"""An asynchronous session with a loop of its own, so that an actor can play it in its thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool

from sa_doclock import AsyncLockingSession
from tests.integration.asyncio.drivers import PATIENT
from tests.support.databases import Database

T = TypeVar("T")
Play = Callable[[AsyncLockingSession], Awaitable[T]]


class Bridge:
    """The object that an asynchronous actor holds in place of a session.

    The pool has one connection, so that one which a cancelled task has leaked is missed.
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
            poolclass=AsyncAdaptedQueuePool,  # that of aiosqlite since SQLAlchemy 2.0.38
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
        """Run ``action(session)`` to its end; in the actor's thread."""

        async def play() -> T:
            return await action(self.session)

        task = self.loop.create_task(play())
        self._task = task
        return self.loop.run_until_complete(task)

    def cancel(self) -> None:
        """Cancel what is being played; from the director's thread."""
        assert self._task is not None
        self.loop.call_soon_threadsafe(self._task.cancel)

    def _trace(self, connection: Any, _: object) -> None:
        # SQLite runs in a thread of the driver's; waits.py looks for the actor's.
        actor, begun = threading.get_ident(), self._database.connections._statements

        def note(statement: str) -> None:
            begun[actor] = statement

        connection.run_async(lambda driver: driver.set_trace_callback(note))


def playing(action: Play[T]) -> Callable[[Bridge], T]:
    """Make a step for an actor: ``ann.does(playing(lambda session: ...))``."""
    return lambda bridge: bridge.plays(action)
