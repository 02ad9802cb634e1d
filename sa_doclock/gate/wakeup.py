"""A wait of a thread or a task that another thread can end.

notify() may be called from any thread, also by the garbage collector: it takes no lock that the
calling thread could hold already.
"""

from __future__ import annotations

import asyncio
import threading

from sqlalchemy.util import await_only


def new_wakeup(*, under_asyncio: bool) -> Wakeup:
    """Return a wakeup for this thread, or for the task that runs in it."""
    return _TaskWakeup() if under_asyncio else Wakeup()


class Wakeup:
    """A wait of this thread, which ends once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # an Event has a lock of its own, taken when it is set
        self._lock.acquire()

    def wait(self, seconds: float | None) -> None:
        """Return after notify(), or after so many seconds; None waits without a limit."""
        self._lock.acquire(timeout=-1 if seconds is None else seconds)

    def notify(self) -> bool:
        """End the wait; return False if the waiter no longer exists."""
        self._lock.release()
        return True


class _TaskWakeup(Wakeup):
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._notified: asyncio.Future[None] = self._loop.create_future()

    def wait(self, seconds: float | None) -> None:
        # Not wait_for(), which may lose a cancellation or a result when both come at once.
        await_only(asyncio.wait([self._notified], timeout=seconds))

    def notify(self) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._set)
        except RuntimeError:  # the loop is closed, and its tasks are gone
            return False
        return True

    def _set(self) -> None:
        if not self._notified.done():
            self._notified.set_result(None)
