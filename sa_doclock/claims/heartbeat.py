"""The heartbeat: one thread that renews all leases of this process.

It renews each a third of its time after the last renewal, as long as its block runs.  The thread ends
with the last block, and with the interpreter.
"""

from __future__ import annotations

import logging
import os
import time
from threading import Condition, Thread
from typing import Final, Protocol

from ..errors import CheckoutLost

_log = logging.getLogger("sa_doclock")

_FRACTION: Final = 3
_RETRIES: Final = 10  # of a renewal that has failed, within the time that is left


class Renewable(Protocol):
    """A lease, as a heartbeat sees it."""

    @property
    def seconds(self) -> float:
        """The time of the lease."""

    def renew(self) -> object:
        """Renew it.  :raises CheckoutLost: it is over."""

    def note_lost(self, error: CheckoutLost) -> None:
        """Note that it is over."""


class Schedule:
    """The times, by the clock of the process, at which leases are to be renewed."""

    def __init__(self) -> None:
        self._due: dict[Renewable, float] = {}

    def __bool__(self) -> bool:
        return bool(self._due)

    def __contains__(self, lease: Renewable) -> bool:
        return lease in self._due

    def add(self, lease: Renewable) -> None:
        """Renew this lease from now on."""
        self._due[lease] = time.monotonic() + lease.seconds / _FRACTION

    def remove(self, lease: Renewable) -> None:
        """Renew it no more."""
        self._due.pop(lease, None)

    def due(self) -> list[Renewable]:
        """Return the leases to renew now, the most urgent first."""
        now = time.monotonic()
        return sorted(
            (one for one, at in self._due.items() if at <= now), key=self._due.__getitem__
        )

    def pause(self) -> float:
        """Return the seconds until the next one is due."""
        return max(0.0, min(self._due.values()) - time.monotonic())

    def note_renewed(self, lease: Renewable) -> None:
        """Note that the lease was renewed."""
        if lease in self._due:
            self.add(lease)

    def note_failed(self, lease: Renewable, error: Exception) -> None:
        """Note that the renewal has failed: the lease is over, or it is tried again soon."""
        if lease not in self._due:  # its block has ended meanwhile
            return
        if isinstance(error, CheckoutLost):
            self.remove(lease)
            lease.note_lost(error)
            _log.warning("lease_each: %s", error)
        else:
            self._due[lease] = time.monotonic() + lease.seconds / _FRACTION / _RETRIES
            _log.warning("lease_each: a lease could not be renewed, and is tried again: %s", error)


class HeartbeatThread:
    """The thread of this process, while there are leases.

    A renewal that hangs delays those of the other leases, so that each connection should have the
    timeouts of its driver.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin again without leases, as in the child of a fork, whose parent keeps them."""
        self._changed = Condition()
        self._schedule = Schedule()
        self._thread: Thread | None = None

    def add(self, lease: Renewable) -> None:
        """Renew this lease from now on."""
        with self._changed:
            if self._thread is None:
                thread = Thread(target=self._run, name="sa_doclock leases", daemon=True)
                thread.start()  # may fail, where the process has too many
                self._thread = thread
            self._schedule.add(lease)
            self._changed.notify()

    def remove(self, lease: Renewable) -> None:
        """Renew it no more; a renewal that is under way may still end."""
        with self._changed:
            self._schedule.remove(lease)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._schedule:
                    self._thread = None
                    return
                due = self._schedule.due()
                if not due:
                    self._changed.wait(self._schedule.pause())
            for lease in due:
                self._renew(lease)

    def _renew(self, lease: Renewable) -> None:
        if lease not in self._schedule:
            return
        try:
            lease.renew()
        except Exception as error:  # noqa: BLE001  # the thread serves the other leases too
            with self._changed:
                self._schedule.note_failed(lease, error)
        else:
            with self._changed:
                self._schedule.note_renewed(lease)


heartbeat: Final = HeartbeatThread()  # global: one thread for the process
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=heartbeat.reset)
