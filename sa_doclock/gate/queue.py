"""DocumentGate: the sessions of one process that want the same document queue before they connect.

The gate cannot deadlock.  Only a transaction's first lock queues here, before the session has a
connection, so a session that waits here holds nothing that another could wait for.  Of several
documents that one call asks for it may hold the first ones; every call takes them in ascending order.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Literal

from sqlalchemy.util import await_only

from ..process_waits import observed_wait

SecondSession = Literal["refuse", "allow"]


class DocumentGate:
    """A queue for each document, in front of the connection pool, for the sessions of a process.

    ``sessionmaker(engine, class_=LockingSession, gate=DocumentGate())``, and in the same way
    ``async_sessionmaker(engine, class_=AsyncLockingSession, ...)``.  Without a gate, each session
    that waits for a document keeps a connection.  With it, one session of a document's queue waits
    at the server, and the others wait here, in the order in which they came.  The lock of the
    database is always taken as well, and it alone keeps out other processes.

    A lock queues if it is a transaction's first, by key or by ``lock_key()``, under ForUpdate or
    SharedRead; all others ask the database, as without a gate.  ``lock_timeout`` is for both waits.
    docs/gate.md has the reasons, and all that does not queue.

    Documents of different engines, and of different ``schema_translate_map``, do not share a
    queue.  The gate does not see a schema that is chosen on the connection, by ``search_path`` or
    USE: there, documents with the same key wait for each other.

    :param next_waits_at_server: when a lock is granted, the next session of the queue goes to the
        server and waits there, with a connection, so that no time is lost.  False: it waits here
        until the transaction has ended, and the document uses one connection in all.
    :param second_session: ``"refuse"``: a task, or thread, that holds a lock in one session and
        asks for a connection in another, of the same gate and pool, gets :class:`LockMisuse` at
        once.  Enough of them would use up the pool and wait for each other, which no database
        sees.  ``"allow"`` permits it.
    :raises TypeError: ``next_waits_at_server`` is no bool.
    :raises ValueError: no such ``second_session``.
    """

    def __init__(
        self, *, next_waits_at_server: bool = True, second_session: SecondSession = "refuse"
    ) -> None:
        if not isinstance(next_waits_at_server, bool):
            raise TypeError(
                f"next_waits_at_server must be True or False, not {next_waits_at_server!r}"
            )
        if second_session not in ("refuse", "allow"):
            raise ValueError(f'second_session must be "refuse" or "allow", not {second_session!r}')
        self.next_waits_at_server = next_waits_at_server
        self.refuses_second_session = second_session == "refuse"
        self._reset()
        _gates.add(self)

    def _reset(self) -> None:
        self._queues: dict[Hashable, _DocumentQueue] = {}
        self._leaving: deque[QueueEntry] = deque()
        self._mutex = threading.Lock()

    @property
    def waiting(self) -> int:
        """The number of entries that wait now."""
        with self._mutex:
            found = sum(len(queue.waiting) for queue in self._queues.values())
        self._process_leaving()
        return found

    def __repr__(self) -> str:
        return f"<DocumentGate: {self.waiting} waiting, {len(self._queues)} documents>"

    def enter(
        self,
        key: Hashable,
        *,
        shared: bool,
        next_may_follow: bool,
        seconds: float | None,
        under_asyncio: bool,
        waiting: Callable[[], AbstractContextManager[None]] = observed_wait,
    ) -> QueueEntry | None:
        """Wait to be admitted and return the entry; None if the time is over before.

        :param next_may_follow: the server has a queue, in which the next one can wait.
        :param waiting: makes the block of the wait, where there is one.
        """
        next_may_follow = next_may_follow and self.next_waits_at_server
        entry = QueueEntry(key, shared, next_may_follow, _DocumentQueue())
        try:
            with self._mutex:
                entry.queue = queue = self._queues.setdefault(key, entry.queue)
                if not queue.waiting and queue.can_admit(entry):
                    queue.set_admitted(entry, True)
                else:
                    entry.wakeup = _TaskWakeup() if under_asyncio else _Wakeup()
                    entry.queued = True
                    queue.waiting.append(entry)
            if self._leaving:
                self._process_leaving()
            if entry.wakeup is None:
                return entry
            with waiting():
                entry.wakeup.wait(seconds)
        except BaseException:
            self.leave([entry])
            raise
        with self._mutex:
            admitted = entry.admitted
        if not admitted:
            self.leave([entry])
            return None
        self._process_leaving()
        return entry

    def note_granted(self, entries: Iterable[QueueEntry]) -> None:
        """Note that the database has granted their locks."""
        with self._mutex:
            for entry in entries:
                if entry.admitted and not entry.granted:
                    entry.granted = True
                    entry.queue.ungranted -= 1
                    self._admit_next(entry.key, entry.queue)
        if self._leaving:
            self._process_leaving()

    def leave(self, entries: Iterable[QueueEntry]) -> None:
        """Give up these entries; it waits for nothing, so a garbage collection may call it."""
        self._leaving.extend(entries)
        self._process_leaving()

    def is_busy(self, key: Hashable, *, shared: bool) -> bool:
        """Return whether an entry for this document would block this lock."""
        with self._mutex:
            queue = self._queues.get(key)
            found = queue is not None and not (
                shared and not queue.waiting and queue.admits_readers
            )
        self._process_leaving()
        return found

    def _process_leaving(self) -> None:
        # A thread that cannot have the mutex leaves this to the one that has it, which looks here
        # after it has released it.
        while self._leaving and self._mutex.acquire(blocking=False):
            try:
                while self._leaving:
                    self._remove(self._leaving.popleft())
            finally:
                self._mutex.release()

    def _remove(self, entry: QueueEntry) -> None:
        if entry.admitted:
            entry.queue.set_admitted(entry, False)
        else:
            with suppress(ValueError):  # it was never in the queue, or has left it before
                entry.queue.waiting.remove(entry)
        self._admit_next(entry.key, entry.queue)

    def _admit_next(self, key: Hashable, queue: _DocumentQueue) -> None:
        while queue.waiting and queue.can_admit(queue.waiting[0]):
            entry = queue.waiting.popleft()
            assert entry.wakeup is not None
            queue.set_admitted(entry, True)
            if not entry.wakeup.notify():
                queue.set_admitted(entry, False)
        if not queue.waiting and not queue.admitted_count and self._queues.get(key) is queue:
            del self._queues[key]


@dataclass(slots=True, eq=False)
class QueueEntry:
    """One session in the queue of one document."""

    key: Hashable
    shared: bool
    next_may_follow: bool
    queue: _DocumentQueue
    wakeup: _Wakeup | None = None
    queued: bool = False
    admitted: bool = False
    granted: bool = False


@dataclass(slots=True, eq=False)
class _DocumentQueue:
    """The queue of one document: the entries that were admitted, and those that wait."""

    waiting: deque[QueueEntry] = field(default_factory=deque)
    readers: int = 0
    writers: int = 0
    ungranted: int = 0  # of both

    @property
    def admitted_count(self) -> int:
        return self.readers + self.writers

    @property
    def admits_readers(self) -> bool:
        """Return whether readers hold it, so that one more is granted at once."""
        return not self.writers and self.ungranted < self.readers

    def can_admit(self, entry: QueueEntry) -> bool:
        if not self.admitted_count or (entry.shared and self.admits_readers):
            return True
        return entry.next_may_follow and not self.ungranted

    def set_admitted(self, entry: QueueEntry, admitted: bool) -> None:
        entry.admitted = admitted
        by = 1 if admitted else -1
        if entry.shared:
            self.readers += by
        else:
            self.writers += by
        if not entry.granted:
            self.ungranted += by


class _Wakeup:
    """A wait of this thread, which ends once.

    notify() may be called from any thread, also by the garbage collector: it takes no lock that
    the calling thread could hold already.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # an Event has a lock of its own, taken when it is set
        self._lock.acquire()

    def wait(self, seconds: float | None) -> None:
        self._lock.acquire(timeout=-1 if seconds is None else seconds)

    def notify(self) -> bool:
        # Return False if the waiter no longer exists.
        self._lock.release()
        return True


class _TaskWakeup(_Wakeup):
    """The same of the task that runs in this thread."""

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


# Global, for a process that forks: whoever waits in the parent does not leave in the child.
_gates: weakref.WeakSet[DocumentGate] = weakref.WeakSet()


def _forked() -> None:
    # A session in the parent's queues does not leave them in the child.
    for gate in _gates:
        gate._reset()  # noqa: SLF001  # its own module's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
