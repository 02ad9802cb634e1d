"""The queues of a gate, in which sessions and the callers of gate.run() wait before they connect.

The gate cannot deadlock.  Only a transaction's first lock queues here, before the session has a
connection, so a session that waits here holds nothing for which another could wait.  A call for
several documents may hold the first ones; every call takes them in ascending order.
"""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import ClassVar, Concatenate, ParamSpec, TypeVar
from weakref import WeakSet

from ...process_waits import TaskWakeup, Wakeup

P = ParamSpec("P")
Q = TypeVar("Q", bound="GateQueues")
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class QueueEntry:
    """One session, or one call of gate.run(), in the queue of one document."""

    most_at_server: ClassVar[float] = math.inf

    key: Hashable
    shared: bool
    next_may_follow: bool  # it can wait at the server, behind the holder
    wakeup: Wakeup | None = None  # ends its wait; None: admitted at once
    admitted: bool = False  # it may ask the server, or has done so
    notified: bool = False  # its wait was ended by an admission
    granted: bool = False  # the database has granted the lock

    @property
    def waits(self) -> bool:
        """Return whether it counts as waiting."""
        return not self.admitted

    def may_follow(self, admitted: Sequence[QueueEntry]) -> bool:
        """Return whether it may go to the server while these are there."""
        if not admitted or (self.shared and _are_readers(admitted)):
            return True
        follows = self.next_may_follow and len(admitted) < self.most_at_server
        return follows and all(entry.granted for entry in admitted)


def _are_readers(admitted: Iterable[QueueEntry]) -> bool:
    """Return whether readers hold the document, so that the server grants another at once."""
    return all(waiter.shared for waiter in admitted) and any(waiter.granted for waiter in admitted)


def under_mutex(method: Callable[Concatenate[Q, P], T]) -> Callable[Concatenate[Q, P], T]:
    """Call a method of the queues under their mutex; at its end, remove entries that left meanwhile."""

    # A decorator, not a context manager: an interruption before the first line of a Python
    # ``__exit__()`` would leave the mutex locked.
    @wraps(method)
    def call(self: Q, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.mutex:
            if self.busy:  # re-entered by this thread, as by the repr() of a gate in a debugger
                return method(self, *args, **kwargs)
            self.busy = True
            try:
                return method(self, *args, **kwargs)
            finally:
                self.busy = False
                if self.leaving:
                    self.process_leaving()

    return call  # type: ignore[return-value]


class GateQueues:
    """The queues of one gate."""

    def __init__(self) -> None:
        self.reset()
        _gates.add(self)

    def reset(self) -> None:
        """Forget all waiters."""
        # The queue of each document in order of arrival: admitted entries come first.
        self.documents: dict[Hashable, dict[QueueEntry, None]] = {}
        self.leaving: deque[QueueEntry] = deque()
        # A garbage collection may start anywhere, even under the mutex, and leave a queue: with a
        # Lock, the thread would wait for itself.
        self.mutex, self.busy = threading.RLock(), False

    @property
    @under_mutex
    def waiting(self) -> int:
        """The number of waiting entries."""
        return sum(entry.waits for queue in self.documents.values() for entry in queue)

    @under_mutex
    def join(self, entry: QueueEntry, *, under_asyncio: bool) -> None:
        """Join the queue; the entry has a wakeup unless it is admitted at once.

        The caller must call ``leave()`` in the end, even after an error.
        """
        self.documents.setdefault(entry.key, {})[entry] = None
        self._admit(entry.key)
        if not entry.admitted:
            entry.wakeup = TaskWakeup() if under_asyncio else Wakeup()

    @under_mutex
    def note_granted(self, entries: Iterable[QueueEntry]) -> None:
        """Record that the database has granted their locks."""
        for entry in entries:
            if entry.admitted and not entry.granted:
                entry.granted = True
                self._admit(entry.key)

    @under_mutex
    def is_busy(self, key: Hashable, *, shared: bool) -> bool:
        """Return whether an entry for this document would block this lock."""
        queue = self.documents.get(key, {})
        return bool(queue) and not (shared and _are_readers(queue))

    def leave(self, entries: Iterable[QueueEntry]) -> None:
        """Remove these entries; repeating this is safe.

        A garbage collection may call it, even during a change of the queues: then they leave at the
        end of that.
        """
        self.leaving.extend(entries)
        with self.mutex:
            if not self.busy:
                self.process_leaving()

    def process_leaving(self) -> None:
        """Remove those that have left."""
        while self.leaving:
            self.busy = True
            try:
                self._remove(self.leaving[0])
                self.leaving.popleft()
            finally:
                self.busy = False  # from here on, a garbage collection cleans up by itself

    def _remove(self, entry: QueueEntry) -> None:
        self.documents.get(entry.key, {}).pop(entry, None)
        self._admit(entry.key)  # also after an interruption in between

    def _admit(self, key: Hashable) -> None:
        """Admit the entries at the front of a queue that may ask the server, and end their waits."""
        queue, admitted = self.documents.get(key, {}), list[QueueEntry]()
        for entry in [*queue]:
            if not (entry.admitted or entry.may_follow(admitted)):
                return
            entry.admitted = True
            if entry.wakeup is not None and not entry.notified:
                entry.notified = entry.wakeup.notify()
                if not entry.notified:  # its waiter no longer exists
                    del queue[entry]
                    continue
            admitted.append(entry)
        if not queue:
            self.documents.pop(key, None)


# Global: after a fork, waiters of the parent never leave the child's copy.
# Threads: add() is atomic; the child of a fork, which has one thread, alone iterates over it.
_gates: WeakSet[GateQueues] = WeakSet()


def _forked() -> None:
    # In the child, no session of the parent leaves its queue, and no thread unlocks the mutex.
    for gate in _gates:
        gate.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
