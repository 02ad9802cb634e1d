"""The waits inside this process, which no server sees: at a gate, and between two tries."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any

from sqlalchemy.util import await_only

wait_observer: ContextVar[Callable[[], AbstractContextManager[None]] | None] = ContextVar(
    "sa_doclock.wait_observer", default=None
)
"""Creates the block for such a wait; the test kit sets it."""


def observed_wait() -> AbstractContextManager[None]:
    """Return the block for a wait: the observer's, if there is one."""
    observe = wait_observer.get()
    return nullcontext() if observe is None else observe()


class Wakeup:
    """A wait of this thread, which another one ends, once.

    Any thread, even the garbage collector, may call notify(): it takes no lock that the calling
    thread could hold already.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # an Event would take a lock of its own to be set
        self._lock.acquire()

    def wait(self, seconds: float | None) -> None:
        """Wait until notified, or for this many seconds."""
        self._lock.acquire(timeout=-1 if seconds is None else seconds)

    def notify(self) -> bool:
        """End the wait; return False if the waiter no longer exists."""
        try:  # noqa: SIM105  # a call less for each function
            self._lock.release()
        except RuntimeError:  # it was notified before, and has not noticed yet
            pass
        return True


class TaskWakeup(Wakeup):
    """The same for the task that runs in this thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._notified: asyncio.Future[None] = self._loop.create_future()

    def wait(self, seconds: float | None) -> None:
        """See :class:`Wakeup`."""
        await_only(self.come(seconds))

    async def come(self, seconds: float | None, *others: asyncio.Future[Any]) -> None:
        """Wait as :meth:`wait` does, outside a greenlet; or until one of the others is done."""
        # Not wait_for(), which may lose a cancellation or a result when both come at once.
        futures = [self._notified, *others]
        await asyncio.wait(futures, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    def notify(self) -> bool:
        """See :class:`Wakeup`."""
        with suppress(RuntimeError):  # no loop runs in this thread
            if asyncio.get_running_loop() is self._loop:
                self._set()
                return True
        try:
            self._loop.call_soon_threadsafe(self._set)
        except RuntimeError:  # the loop is closed, and its tasks are gone
            return False
        return True

    def _set(self) -> None:
        if not self._notified.done():
            self._notified.set_result(None)


def pause(seconds: float, *, under_asyncio: bool) -> None:
    """Sleep; under asyncio, where the session runs in a greenlet, let others run."""
    with observed_wait():
        if under_asyncio:
            await_only(asyncio.sleep(seconds))
        else:
            time.sleep(seconds)
