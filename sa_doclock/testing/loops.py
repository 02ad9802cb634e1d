"""The event loops in which the test kit runs coroutines, from threads that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from inspect import isawaitable
from typing import Any

from sqlalchemy import Connection


class EventLoop:
    """An event loop, for other threads."""

    def run(self, awaitable: Any) -> Any:
        """Await it in the loop, in the context of this thread."""
        return self._submit(_awaited(awaitable)).result()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in this thread; what it returns is awaited in the loop, if it can be."""
        result = function(*arguments)
        return self.run(result) if isawaitable(result) else result

    def run_function(self, function: Callable[[], Any]) -> Any:
        """Run a function of SQLAlchemy's that uses an asynchronous engine."""
        return self.run(_spawned(function))

    def _submit(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        raise NotImplementedError


class LoopThread(EventLoop):
    """An event loop in a thread of its own, from its first use on."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._first = threading.Lock()

    def stop(self, last: Callable[[asyncio.AbstractEventLoop], object] | None = None) -> None:
        """Cancel what has not ended, run a last function, and end the loop and its thread."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self.run(_end_tasks(loop))
        if last is not None:
            self.run_function(lambda: last(loop))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def _submit(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        with self._first:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
                self._thread.start()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


class LoopOfTest(EventLoop):
    """The event loop in which a test runs; it goes on afterwards."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._running: list[Future[Any]] = []

    def stop(self, _last: object = None) -> None:
        """Cancel what has not ended."""
        for future in self._running:
            future.cancel()

    def _submit(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        self._running.append(future)
        return future


def wait_for_turn(turn: Future[None], connection: Connection) -> None:
    """Return when the future is done; with an asynchronous driver, the event loop goes on meanwhile."""
    if connection.dialect.is_async:
        adapted: Any = connection.connection.dbapi_connection
        adapted.run_async(lambda _: asyncio.wrap_future(turn))
    else:
        turn.result()


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


async def _spawned(function: Callable[[], Any]) -> Any:
    from sqlalchemy.util import greenlet_spawn  # noqa: PLC0415  # it needs greenlet

    return await greenlet_spawn(function)


async def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await loop.shutdown_asyncgens()
