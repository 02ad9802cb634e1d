"""The queues of a gate, in which sessions and the callers of gate.run() wait before they connect.

The gate cannot deadlock.  Only a transaction's first lock queues here, before the session has a
connection, so a session that waits here holds nothing that another could wait for.  Of several
documents that one call asks for it may hold the first ones; every call takes them in ascending order.
"""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import ClassVar, Final, TypeVar
from weakref import WeakSet

from .wakeup import TaskWakeup, Wakeup

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class DocumentQueue:
    """The queue of one document: the entries that were admitted, and those that wait.

    Each is in at most one of the two, and nothing else counts them.

    :ivar suspects: of the functions of gate.run(), the number at the front of which one made a flush
        fail.
    """

    waiting: deque[QueueEntry] = field(default_factory=deque)
    admitted: dict[QueueEntry, None] = field(default_factory=dict)
    suspects: int = 0

    @property
    def admits_readers(self) -> bool:
        """Return whether readers hold it, so that one more is granted at once."""
        return all(one.shared for one in self.admitted) and any(
            one.granted for one in self.admitted
        )

    def can_admit(self, entry: QueueEntry) -> bool:
        """Return whether it may go to the server, where all before it are admitted."""
        if not self.admitted or (entry.shared and self.admits_readers):
            return True
        follows = entry.next_may_follow and len(self.admitted) < entry.most_at_server
        return follows and all(one.granted for one in self.admitted)


NOWHERE: Final = DocumentQueue()


@dataclass(slots=True, eq=False)
class QueueEntry:
    """One session, or one call of gate.run(), in the queue of one document.

    :param next_may_follow: the server has a queue, in which it can wait behind who holds the document.
    :ivar queue: NOWHERE before it has joined one, and after it has left it.
    :ivar wakeup: ends its wait; None where it was admitted at once.
    :ivar notified: its wait was ended, since it is admitted.
    :ivar granted: the database has granted the lock.
    """

    most_at_server: ClassVar[float] = math.inf

    key: Hashable
    shared: bool
    next_may_follow: bool
    queue: DocumentQueue = field(default_factory=lambda: NOWHERE)
    wakeup: Wakeup | None = None
    notified: bool = False
    granted: bool = False

    @property
    def admitted(self) -> bool:
        """Return whether it may ask the server, or has done so."""
        return self in self.queue.admitted

    @property
    def waits(self) -> bool:
        """Return whether it counts as one that waits."""
        return not self.admitted


class GateQueues:
    """The queues of one gate."""

    def __init__(self) -> None:
        self._reset()
        _gates.add(self)

    def _reset(self) -> None:
        self.documents: dict[Hashable, DocumentQueue] = {}
        self._leaving: deque[QueueEntry] = deque()
        # A garbage collection may come at any allocation, also under the mutex, and leave a queue:
        # with a Lock it would wait for its own thread for ever.
        self._mutex, self._busy = threading.RLock(), False

    @property
    def waiting(self) -> int:
        """The number of those that wait now."""

        def count() -> int:
            return sum(
                entry.waits
                for queue in self.documents.values()
                for entry in chain(queue.admitted, queue.waiting)
            )

        return self._call(count)

    def join(self, entry: QueueEntry, *, under_asyncio: bool) -> None:
        """Stand in the queue; the entry has a wakeup unless it was admitted at once.

        Whoever calls it has to call ``leave()`` in the end, whatever this call has met.
        """

        def join() -> None:
            queue = self.documents.get(entry.key)
            if queue is None:
                queue = self.documents[entry.key] = DocumentQueue()
            entry.queue = queue
            if not queue.waiting and queue.can_admit(entry):
                queue.admitted[entry] = None
            else:
                entry.wakeup = TaskWakeup() if under_asyncio else Wakeup()
                queue.waiting.append(entry)

        self._call(join)

    def note_granted(self, entries: Iterable[QueueEntry]) -> None:
        """Note that the database has granted their locks."""

        def note() -> None:
            for entry in entries:
                if entry.admitted and not entry.granted:
                    entry.granted = True
                    self._admit_next(entry.key, entry.queue)

        self._call(note)

    def leave(self, entries: Iterable[QueueEntry]) -> None:
        """Give up these entries, a second time too.

        A garbage collection may call it, also in the midst of a change of the queues: then they
        leave at the end of that.
        """
        self._leaving.extend(entries)
        with self._mutex:
            if not self._busy:
                self._process_leaving()

    def is_busy(self, key: Hashable, *, shared: bool) -> bool:
        """Return whether an entry for this document would block this lock."""

        def is_busy() -> bool:
            queue = self.documents.get(key)
            return queue is not None and not (shared and not queue.waiting and queue.admits_readers)

        return self._call(is_busy)

    def _call(self, function: Callable[[], T]) -> T:
        """Return what the function returns, called under the mutex.

        It is no block of our own: an interruption may come in front of the first line of an
        ``__exit__()`` in Python, and the mutex would stay with its thread.
        """
        with self._mutex:
            if self._busy:  # out of a call of this thread, as the repr() of a gate in a debugger
                return function()
            self._busy = True
            try:
                return function()
            finally:
                self._busy = False
                self._process_leaving()

    def _process_leaving(self) -> None:
        while self._leaving:
            self._busy = True
            try:
                while self._leaving:
                    self._remove(self._leaving[0])
                    self._leaving.popleft()
            finally:
                self._busy = False  # what a garbage collection adds from here on, it does itself

    def _remove(self, entry: QueueEntry) -> None:
        queue = entry.queue
        queue.admitted.pop(entry, None)
        if entry in queue.waiting:
            queue.waiting.remove(entry)
        self._admit_next(entry.key, queue)
        entry.queue = NOWHERE  # last: after an interruption it is done again

    def _admit_next(self, key: Hashable, queue: DocumentQueue) -> None:
        self._notify(queue)  # where an interruption came in between
        while queue.waiting and queue.can_admit(queue.waiting[0]):
            queue.admitted[queue.waiting[0]] = None
            queue.waiting.popleft()
            self._notify(queue)
        if not queue.waiting and not queue.admitted and self.documents.get(key) is queue:
            del self.documents[key]

    def _notify(self, queue: DocumentQueue) -> None:
        """End the waits of those who were admitted; drop who no longer exists."""
        for entry in [*queue.admitted]:
            if entry.wakeup is not None and not entry.notified:
                entry.notified = entry.wakeup.notify()
                if not entry.notified:
                    del queue.admitted[entry]


# Global, for a process that forks: whoever waits in the parent does not leave in the child.
# Threads: add() is atomic; only the child of a fork goes through it, which has one thread.
_gates: WeakSet[GateQueues] = WeakSet()


def _forked() -> None:
    # A session in the parent's queues does not leave them in the child, nor a thread a mutex.
    for gate in _gates:
        gate._reset()  # noqa: SLF001  # its own module's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
