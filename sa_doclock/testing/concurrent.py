"""two_at_once(): the double click, always at the worst moment."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from .schedule import Party, Schedule, current_party


@dataclass(frozen=True)
class Outcome:
    """The end of a function that ran in :func:`two_at_once`.

    :ivar value: what it has returned.
    :ivar error: what it has raised; None where it has returned.
    """

    value: Any = None
    error: BaseException | None = None

    def result(self) -> Any:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


def two_at_once(
    first: Callable[[], Any],
    second: Callable[[], Any],
    *,
    patience: float = 5.0,
    timeout: float = 60.0,
) -> tuple[Outcome, Outcome]:
    """Run two functions at once, so that both have read before either writes.

    Each function that is about to write waits until the other one is about to write too, has ended,
    or waits for a lock.  Then the first goes on, and after it the second.  So a program without locks
    loses an update each time, and one with locks never does.  The server says who waits for whom; on
    SQLite the statements of the two do.

    The functions may do anything that ends in engines of this process: call an endpoint through the
    test client of a WSGI or ASGI application, use plain sessions, asynchronous ones, or none.
    Statements count for a function in its own thread or task, and in those that take over its
    ``contextvars``, as ``asyncio``, anyio and Starlette's test client let them.

    :param first: a function or coroutine function without arguments; so is ``second``.  Functions
        run in a thread each, coroutines in an event loop that both share: their asynchronous engine
        is made in it, or has ``poolclass=NullPool``.  Two functions that each run a loop of their own
        must not share one that has not connected yet: SQLAlchemy's first connection knows one loop.
    :param patience: seconds after which a function that neither writes, ends, nor waits in the
        database waits for the other one in this process: for a gate, a mutex, a connection.
    :param timeout: seconds after which a function that has not ended is an error.
    :returns: what became of each.
    :raises TimeoutError: a function has not ended; it goes on in its thread.
    :raises TypeError: not a function.
    """
    functions = _check_function("first", first), _check_function("second", second)
    loop = LoopThread()
    schedule = Schedule(patience, loop.run_function)
    outcomes: dict[Party, Outcome] = {}

    def run(party: Party, function: Callable[[], Any]) -> None:
        current_party.set(party)
        try:
            result = function()
            outcomes[party] = Outcome(loop.run(result) if inspect.isawaitable(result) else result)
        except BaseException as error:  # noqa: BLE001  # the caller looks at it
            outcomes[party] = Outcome(error=error)
        finally:
            schedule.note_done(party)

    threads = [
        # An empty context: nothing that the test has set for itself, such as a Flask context.
        threading.Thread(target=Context().run, args=(run, *pair), daemon=True)
        for pair in zip(schedule.parties, functions, strict=True)
    ]
    schedule.start()
    try:
        for thread in threads:
            thread.start()
        schedule.direct(timeout)
    finally:
        schedule.stop()
        loop.stop()
    one, other = schedule.parties
    return outcomes[one], outcomes[other]


def _check_function(name: str, function: Callable[[], Any]) -> Callable[[], Any]:
    if not callable(function):
        raise TypeError(f"{name} must be a function without arguments, not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{name} is a generator function, a call of which runs nothing: {function!r}"
        )
    return function


class LoopThread:
    """An event loop in a thread of its own, from its first use on."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._first = threading.Lock()

    def run(self, awaitable: Any) -> Any:
        """Await it in the loop, in the context of this thread."""
        return asyncio.run_coroutine_threadsafe(_awaited(awaitable), self._started()).result()

    def run_function(self, function: Callable[[], Any]) -> Any:
        """Run a function of SQLAlchemy's that uses an asynchronous engine."""
        from sqlalchemy.util import greenlet_spawn  # noqa: PLC0415  # it needs greenlet

        coroutine: Coroutine[Any, Any, Any] = greenlet_spawn(function)
        return self.run(coroutine)

    def stop(self) -> None:
        """End the loop and its thread."""
        if self._loop is not None and self._thread is not None:
            self.run(_end_tasks(self._loop))
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._first:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
                self._thread.start()
            return self._loop


async def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what has not ended in time."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await loop.shutdown_asyncgens()


async def _awaited(awaitable: Any) -> Any:
    return await awaitable
