"""two_at_once() and async_two_at_once(): the double click, always at the worst moment."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from ..features.gate import wait_observer
from .loops import LoopOfTest, LoopThread
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
        run in a thread each, coroutines in a new event loop that both share.  The connections that
        are opened in this loop are closed with it.
    :param patience: seconds after which a function that neither writes, ends, nor waits in the
        database waits for the other one in this process: for a mutex, a connection.  That it waits
        at a :class:`DocumentGate`, or between two tries of a batch, is known at once.
    :param timeout: seconds after which a function that has not ended is an error.
    :returns: what became of each.
    :raises TimeoutError: a function has not ended; it goes on in its thread.
    :raises TypeError: not a function.
    """
    functions = check_function("first", first), check_function("second", second)
    return _run_both(functions, patience, timeout, LoopThread())


async def async_two_at_once(
    first: Callable[[], Any],
    second: Callable[[], Any],
    *,
    patience: float = 5.0,
    timeout: float = 60.0,  # two_at_once() has it
) -> tuple[Outcome, Outcome]:
    """See :func:`two_at_once`; for a test that is a coroutine, whose event loop is used.

    So the connections that fixtures of the same event loop have left in the pool can be used.
    Functions that are no coroutine functions run in a thread each here too.
    """
    functions = check_function("first", first), check_function("second", second)
    loop = LoopOfTest(asyncio.get_running_loop())
    return await asyncio.to_thread(_run_both, functions, patience, timeout, loop)


def _run_both(
    functions: tuple[Callable[[], Any], Callable[[], Any]],
    patience: float,
    timeout: float,
    loop: LoopThread | LoopOfTest,
) -> tuple[Outcome, Outcome]:
    schedule = Schedule(patience, loop.run_function)
    outcomes: dict[Party, Outcome] = {}

    def run(party: Party, function: Callable[[], Any]) -> None:
        current_party.set(party)
        wait_observer.set(schedule.waiting_in_process)
        try:
            result = function()
            outcomes[party] = Outcome(loop.run(result) if inspect.isawaitable(result) else result)
        except BaseException as error:  # noqa: BLE001  # the caller looks at it
            outcomes[party] = Outcome(error=schedule.connections.explain(party, error))
        finally:
            schedule.note_done(party)

    threads = [
        # An empty context: nothing that the test has set for itself, such as a Flask context.
        threading.Thread(target=Context().run, args=(run, *pair), daemon=True)
        for pair in zip(schedule.parties, functions, strict=True)
    ]
    try:
        with schedule.listening():
            for thread in threads:
                thread.start()
            schedule.direct(timeout)
    finally:
        loop.stop(schedule.connections.close_those_of)
    one, other = schedule.parties
    return outcomes[one], outcomes[other]


def check_function(name: str, function: Callable[[], Any]) -> Callable[[], Any]:
    """Return the function.

    :raises TypeError: it is none, or a call of it runs nothing.
    """
    if not callable(function):
        raise TypeError(f"{name} must be a function without arguments, not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{name} is a generator function, a call of which runs nothing: {function!r}"
        )
    return function
