"""Warnings about locks that are held for too long: while they are held, and when they are released.

The first comes from a thread, because the program may be stuck in its block: one daemon thread for
all sessions of the process, started by the first lock of a session with ``warn_held_after``.  It
refers to documents and lines of the program, never to a session or a connection.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any, Final
from weakref import ref

from ..caller import line_of_program
from ..core.transaction import LockCall, SessionPart
from ..errors import LockFailed
from ..events import ReleasedLock
from ..keys import DocumentKey, LockedName, document_label, public_key
from ..options import LockOptions, lock_label

_log = logging.getLogger("sa_doclock")


@dataclass(eq=False)
class _HeldLock:
    document: DocumentKey | LockedName
    lock: LockOptions
    line: str | None
    since: float = field(default_factory=time.monotonic)

    def warn(self, held: float, outcome: str, words: str) -> None:
        if not _log.isEnabledFor(logging.WARNING):
            return
        entity, identity = self.document
        label, lock = document_label(entity, public_key(identity)), lock_label(self.lock)
        fields: dict[str, Any] = {"document": label, "lock": lock, "waited": None, "held": held}
        fields |= {"outcome": outcome, "line": self.line}
        line = self.line or "an unknown line"
        text = "%s %s: held for %.3f s, taken at %s: %s"
        _log.warning(text, label, lock, held, line, words, extra=fields)


class HeldWarnings(SessionPart):
    """The locks that one session holds, each with the line of the program that took it.

    :param seconds: the time after which to warn.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._held: dict[DocumentKey | LockedName, _HeldLock] = {}

    def settled(self, call: LockCall, error: LockFailed | None) -> None:
        """Note the locks that the program has just taken."""
        line = line_of_program()
        for document in () if error is not None else call.new:
            if document not in self._held:
                held = self._held[document] = _HeldLock(document, call.request.lock, line)
                _watcher.add(held, self._seconds)

    def released(self, released: Sequence[ReleasedLock], outcome: str) -> None:
        """Warn of the released locks that were held for too long."""
        for lock in released:
            held = self._held.pop(lock.document, None)
            if held is not None:
                _watcher.remove(held, self._seconds)
                if lock.held >= self._seconds:
                    held.warn(lock.held, outcome, outcome)


class _Watcher:
    """The thread that warns of locks while they are held.

    Locks with equal limits are due in the order of their grants.  The references are weak, so a
    garbage-collected session causes no warning.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._changed = Condition()  # on an RLock: a garbage collection may come in between
        self._waiting: dict[float, dict[ref[_HeldLock], None]] = {}
        self._thread: Thread | None = None

    def add(self, held: _HeldLock, seconds: float) -> None:
        with self._changed:
            of_same_time = self._waiting.setdefault(seconds, {})
            is_first = not of_same_time
            of_same_time[ref(held)] = None
            if self._thread is None:
                thread = Thread(target=self._run, name="sa_doclock held locks", daemon=True)
                with suppress(RuntimeError):  # the interpreter is ending, or has no more threads
                    thread.start()
                    self._thread = thread
            elif is_first:
                self._changed.notify()

    def remove(self, held: _HeldLock, seconds: float) -> None:
        with self._changed:
            self._waiting.get(seconds, {}).pop(ref(held), None)

    def _run(self) -> None:
        try:
            while True:
                self._warn()
        finally:  # after a failed log handler, the next lock starts another thread
            self._thread = None

    def _warn(self) -> None:
        """Warn of overdue locks, or wait for the next one."""
        with self._changed:
            due, pause = self._due(time.monotonic())
            if not due:
                self._changed.wait(pause)
        for held in due:
            held.warn(time.monotonic() - held.since, "held", "still held")

    def _due(self, now: float) -> tuple[list[_HeldLock], float | None]:
        """Return the overdue locks, and the seconds until the next one is due, or None."""
        due: list[_HeldLock] = []
        pauses = []
        for seconds, waiting in [*self._waiting.items()]:
            while waiting:
                reference = next(iter(waiting))
                held = reference()
                if held is not None and held.since + seconds > now:
                    pauses.append(held.since + seconds - now)
                    break
                waiting.pop(reference, None)
                if held is not None:
                    due.append(held)
        return due, min(pauses, default=None)


# Global: one thread per process.
# Threads: its condition protects all of its state.
_watcher: Final = _Watcher()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watcher.reset)
