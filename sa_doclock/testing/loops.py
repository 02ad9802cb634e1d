"""The event loops in which the test kit runs coroutines, and the connections of asynchronous
engines in each.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from inspect import isawaitable
from threading import Lock
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry, Pool

from ..functions import check_function, check_result
from .listening import listening


def check_functions(**functions: Callable[[], Any]) -> None:
    """Check the functions that a test passes, by the names of their arguments.

    :raises TypeError: calling one would run nothing.
    """
    for name, function in functions.items():
        check_function(name, function, "without arguments", arguments=0)


class EventLoop:
    """An event loop, for other threads."""

    def run(self, awaitable: Any) -> Any:
        """Await it in the loop, in the context of this thread."""
        return self._submit(_awaited(awaitable)).result()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in this thread; if its result is awaitable, await it in the loop."""
        result = function(*arguments)
        if isawaitable(result):
            result = self.run(result)
        check_result("a function", function, result)
        return result

    def run_function(self, function: Callable[[], Any]) -> Any:
        """Run a function of SQLAlchemy that uses an asynchronous engine."""
        return self.run(_spawned(function))

    def _submit(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        raise NotImplementedError


class LoopThread(EventLoop):
    """An event loop in its own thread, started at its first use."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._first = threading.Lock()

    def stop(self, last: Callable[[asyncio.AbstractEventLoop], object] | None = None) -> None:
        """Cancel unfinished tasks, run a last function, and end the loop and its thread."""
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
    """The event loop in which a test runs; it continues afterwards."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._running: list[Future[Any]] = []

    def stop(self, _last: object = None) -> None:
        """Cancel unfinished tasks."""
        for future in self._running:
            future.cancel()

    def _submit(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        self._running.append(future)
        return future


def wait_for_turn(turn: Future[None], connection: Connection) -> None:
    """Return when the future is done; with an asynchronous driver, the event loop runs meanwhile."""
    if connection.dialect.is_async:
        _await(turn)
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


F = TypeVar("F")

_LOOP: Final = "sa_doclock.testing.loop"
_OTHER_LOOP: Final = (
    "the pool of the engine had a connection of another event loop, which its driver cannot use in this "
    "one.  Either make the engine with poolclass=NullPool in the tests; or call `await engine.dispose()` "
    "at the end of what has used the engine in the other event loop; or, where this is the event loop "
    "of the test, `await async_two_at_once(...)` in place of two_at_once(...)"
)


class AsyncConnections(Generic[F]):
    """Lets one function at a time connect, and knows the event loop of each connection.

    Two things go wrong if several event loops use an engine, as in tests.  SQLAlchemy makes an
    engine's first connection under an asyncio.Lock: a function that waits for it in another loop
    never wakes up.  And most drivers cannot use a connection outside the loop that opened it.

    :param current: returns the function that runs in this thread or task; None: an unrelated one.
    """

    def __init__(self, current: Callable[[], F | None]) -> None:
        self._current = current
        self._connecting: dict[Dialect, tuple[F, Future[None]]] = {}
        self._changing = Lock()
        self._opened: list[ConnectionPoolEntry] = []
        self._with_other_loop: list[F] = []

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen to all engines of the process in a block; after it, nobody waits to connect."""
        own = listening(
            (Engine, "do_connect", self._before_connect),
            (Pool, "connect", self._note_loop),
            (Pool, "checkout", self._after_connect),
            (Pool, "invalidate", self._note_other_loop),  # sent by pool_pre_ping, before "checkout"
        )
        try:
            with own:
                yield
        finally:
            for function, _ in [*self._connecting.values()]:
                self.release(function)

    def release(self, function: F) -> None:
        """Let the other functions connect: this one has connected, failed, or ended."""
        with self._changing:
            ended = [key for key, (owner, _) in self._connecting.items() if owner is function]
            futures = [self._connecting.pop(key)[1] for key in ended]
        for future in futures:
            future.set_result(None)

    def close_those_of(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close the connections that were opened in this loop, which runs this and ends then.

        The pools remain, and open others.
        """
        for record in self._opened:
            if record.info.get(_LOOP) is loop:
                record.invalidate()

    def run(self, loop: EventLoop, function: Callable[[], Any]) -> Any:
        """Call the function of this thread.

        If asyncio has mixed up two loops, the error gets its cause and cure.
        """
        current = self._current()
        try:
            return loop.call(function)
        except RuntimeError as error:
            if type(error) is RuntimeError and current in self._with_other_loop:
                raise RuntimeError(_OTHER_LOOP) from error
            raise
        finally:
            if current is not None:
                self.release(current)

    # Listeners, in the thread or task of the function.

    def _before_connect(self, dialect: Dialect, *_: object) -> None:
        function = self._current()
        if function is None or not dialect.is_async:
            return
        while True:
            with self._changing:
                owner, connected = self._connecting.setdefault(dialect, (function, Future()))
            if owner is function:
                return
            _await(connected)

    def _note_loop(self, connection: DBAPIConnection, record: ConnectionPoolEntry) -> None:
        if self._current() is not None and _is_async(connection):
            record.info[_LOOP] = asyncio.get_running_loop()
            self._opened.append(record)

    def _after_connect(
        self, connection: DBAPIConnection, record: ConnectionPoolEntry, proxy: object
    ) -> None:
        function = self._current()
        if function is not None:
            self.release(function)
            self._note_other_loop(connection, record, proxy)

    def _note_other_loop(
        self, connection: DBAPIConnection, record: ConnectionPoolEntry, _: object
    ) -> None:
        function = self._current()
        if function is None or not _is_async(connection):
            return
        if record.info.get(_LOOP) is not asyncio.get_running_loop():
            self._with_other_loop.append(function)


def _is_async(connection: DBAPIConnection) -> bool:
    return hasattr(connection, "run_async")  # an AdaptedConnection of SQLAlchemy


def _await(future: Future[None]) -> None:
    from sqlalchemy.util import await_only  # noqa: PLC0415  # it needs greenlet

    async def wait() -> None:
        # Shielded: cancelling one task must not cancel the future for others.
        await asyncio.shield(asyncio.wrap_future(future))

    await_only(wait())
