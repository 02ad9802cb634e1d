"""A wait of a thread or a task that another thread can end.

notify() may be called from any thread, also by the garbage collector: it takes no lock that the
calling thread could hold already.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Protocol

from sqlalchemy.util import await_only


class Bell(Protocol):
    """Rings once."""

    def wait(self, seconds: float | None) -> None:
        """Return when it has rung, or when the time is over; None waits as long as it takes."""

    def ring(self) -> bool:
        """Wake who waits; False where nobody can be woken any more."""


def bell(*, under_asyncio: bool) -> Bell:
    """A bell for this thread, or for the task that runs in it."""
    return _TaskBell() if under_asyncio else _ThreadBell()


class _ThreadBell:
    def __init__(self) -> None:
        self._silent = threading.Lock()  # an Event has a lock of its own, taken when it is set
        self._silent.acquire()

    def wait(self, seconds: float | None) -> None:
        self._silent.acquire(timeout=-1 if seconds is None else seconds)

    def ring(self) -> bool:
        self._silent.release()
        return True


class _TaskBell:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung: asyncio.Future[None] = self._loop.create_future()

    def wait(self, seconds: float | None) -> None:
        # Not wait_for(), which may lose a cancellation or a result when both come at once.
        await_only(asyncio.wait([self._rung], timeout=seconds))

    def ring(self) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._set)
        except RuntimeError:  # the loop is closed, and who has waited in it is gone
            return False
        return True

    def _set(self) -> None:
        if not self._rung.done():
            self._rung.set_result(None)
