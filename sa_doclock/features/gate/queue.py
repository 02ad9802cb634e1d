"""The queues of a gate, in which sessions and the callers of gate.run() wait before they connect.

The gate cannot deadlock.  Only a transaction's first lock queues here, before the session has a
connection, so a session that waits here holds nothing that another could wait for.  Of several
documents that one call asks for it may hold the first ones; every call takes them in ascending order.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeVar
from weakref import WeakSet

from sqlalchemy.util import await_only

T = TypeVar("T")

wait_observer: ContextVar[Callable[[], AbstractContextManager[None]] | None] = ContextVar(
    "sa_doclock.wait_observer", default=None
)
"""Makes the block for a wait in this process, which no server sees; the test kit sets it."""


def observed_wait() -> AbstractContextManager[None]:
    """Return the block for a wait, which the observer makes if there is one."""
    observe = wait_observer.get()
    return nullcontext() if observe is None else observe()


class Wakeup:
    """A wait of this thread, which another one ends, once.

    notify() may be called from any thread, also by the garbage collector: it takes no lock that
    the calling thread could hold already.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # an Event has a lock of its own, taken when it is set
        self._lock.acquire()

    def wait(self, seconds: float | None) -> None:
        """Wait until it is notified, or so long."""
        self._lock.acquire(timeout=-1 if seconds is None else seconds)

    def notify(self) -> bool:
        """End the wait; return False if the waiter no longer exists."""
        try:  # noqa: SIM105  # a call less for each function
            self._lock.release()
        except RuntimeError:  # it was notified before, and has not noticed it yet
            pass
        return True


class TaskWakeup(Wakeup):
    """The same of the task that runs in this thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._notified: asyncio.Future[None] = self._loop.create_future()

    def wait(self, seconds: float | None) -> None:
        """See :class:`Wakeup`."""
        await_only(self.come(seconds))

    async def come(self, seconds: float | None, *others: asyncio.Future[Any]) -> None:
        """Wait as :meth:`wait` does, outside of a greenlet; or until one of the others is done."""
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


@dataclass(slots=True, eq=False)
class DocumentQueue:
    """The queue of one document: the entries that were admitted, and those that wait.

    Each is in at most one of the two, and nothing else counts them.
    """

    waiting: deque[QueueEntry] = field(default_factory=deque)
    admitted: dict[QueueEntry, None] = field(default_factory=dict)

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
    """One session, or one call of gate.run(), in the queue of one document."""

    most_at_server: ClassVar[float] = math.inf

    key: Hashable
    shared: bool
    next_may_follow: (
        bool  # the server has a queue, in which it can wait behind who holds the document
    )
    queue: DocumentQueue = field(
        default_factory=lambda: NOWHERE
    )  # before it joins, and when it has left
    wakeup: Wakeup | None = None  # ends its wait; None where it was admitted at once
    notified: bool = False  # its wait was ended, since it is admitted
    granted: bool = False  # the database has granted the lock

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
            queues = self.documents.values()
            return sum(e.waits for queue in queues for e in (*queue.admitted, *queue.waiting))

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
                if self._leaving:
                    self._process_leaving()

    def _process_leaving(self) -> None:
        while self._leaving:
            self._busy = True
            try:
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
