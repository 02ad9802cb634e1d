"""DocumentGate: the sessions of one process that want the same document queue before they connect.

The gate cannot deadlock.  Only a transaction's first lock queues here, before the session has a
connection, so a session that waits here holds nothing that another could wait for.  Of several
documents that one call asks for it may hold the first ones; every call takes them in ascending order.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

from ...checkout_info import Checkout
from ...functions import call_checked, check_function
from ...options import LockTimeout, check_positive
from .combined import CombinedCommits, new_call
from .wakeup import TaskWakeup, Wakeup, observed_wait

SecondSession = Literal["refuse", "allow"]
S = TypeVar("S")
D = TypeVar("D")
R = TypeVar("R")


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
    :param combine: the most functions that one transaction of :meth:`run` has.
    :raises TypeError: ``next_waits_at_server`` is no bool; ``combine`` is no integer.
    :raises ValueError: no such ``second_session``; ``combine`` is less than 1.
    """

    def __init__(
        self,
        *,
        next_waits_at_server: bool = True,
        second_session: SecondSession = "refuse",
        combine: int = 50,
    ) -> None:
        if not isinstance(next_waits_at_server, bool):
            raise TypeError(
                f"next_waits_at_server must be True or False, not {next_waits_at_server!r}"
            )
        if second_session not in ("refuse", "allow"):
            raise ValueError(f'second_session must be "refuse" or "allow", not {second_session!r}')
        self.next_waits_at_server = next_waits_at_server
        self.refuses_second_session = second_session == "refuse"
        self._combine = check_positive("combine", combine)
        self._reset()
        _gates.add(self)

    def _reset(self) -> None:
        self._queues: dict[Hashable, _DocumentQueue] = {}
        self._leaving: deque[QueueEntry] = deque()
        self._mutex = threading.Lock()
        self._combined = CombinedCommits(self._combine, overlaps=self.next_waits_at_server)

    def run(
        self,
        session_factory: Callable[[], S],
        entity: type[D],
        ident: Any,
        function: Callable[[S, D], R],
        *,
        lock_timeout: LockTimeout = None,
        version: Any = None,
        checkout: Checkout | int | None = None,
    ) -> R:
        """Return ``function(session, document)``, saved together with others' functions.

        The callers of this process who name the same document and the same session factory form a
        queue.  The first one opens a session, locks the document ForUpdate, loads it with its
        parts, and runs the functions that wait, in order of arrival, on this one document.  It
        flushes once and commits once.  Then all callers get their answers.

        **A function may be called more than once**, as by :func:`run_transaction`; its changes are
        saved once.  So it changes nothing but what it reaches through its session and its document.
        It sends messages by ``session.on_commit()``, which calls them once, after the commit.  The
        state of its Python objects is its own business.

        A function that raises before it has changed anything costs nothing.  If one raises after a
        change, or if the flush fails, the transaction is undone: the error goes to the caller of the
        function that is to blame, and the others run again.  docs/gate.md has the rules.

        A function may run in another thread, in the context (contextvars) of its caller.  While
        it waits, so does the queue.  ``flush()`` and ``save_changes()`` send what is pending;
        ``commit()`` and ``rollback()`` are refused.

        :param session_factory: makes new :class:`LockingSession` objects, as ``sessionmaker``.
        :param ident: the primary key, as for :meth:`LockingSession.get_entity`.
        :param lock_timeout: seconds (or a timedelta) until the function begins at the latest: for
            the queue and the lock together.  None: as the session and the server say; who waits
            behind a head that has waited for so long in vain is refused with it.
        :param version: as for :meth:`LockingSession.get_entity`.  It is compared when the turn of
            this function comes, with what the functions before it have changed.
        :param checkout: as for :meth:`LockingSession.get_entity`, of this caller alone.
        :raises Exception: what the function raised; nothing of it is saved.  Or the error of the
            commit: all callers of the transaction get it.
        :raises LockNotAvailable: the function has not begun in time, and does not begin any more.
        :raises StaleDocument: the caller has seen another version; or a function before it in the
            same transaction changed the document.
        :raises CheckedOut: the document is checked out, and not by this caller.
        :raises CheckoutLost: the check-out that the caller names has ended.
        :raises LockFailed: the thread that committed was interrupted meanwhile, or another function
            ended the transaction by a COMMIT of its own: look whether the change is there before
            you run it again.
        :raises LockMisuse: the function called commit(), rollback() or close(); or gate.run() was
            called within a function of gate.run().
        :raises sqlalchemy.exc.NoResultFound: there is no such document.
        :raises TypeError: no factory of locking sessions, no function, or a coroutine function.
        """
        name = "the function of gate.run()"
        check_function(
            *(name, function, "of the session and the document"),
            arguments=2,
            instead="gate.async_run()",
        )
        checked = partial(call_checked, name, False, function)
        call = new_call(session_factory, entity, ident, checked, lock_timeout, version, checkout)
        return self._combined.run(call)  # type: ignore[no-any-return]

    async def async_run(
        self,
        session_factory: Callable[[], S],
        entity: type[D],
        ident: Any,
        function: Callable[[S, D], Awaitable[R]],
        *,
        lock_timeout: LockTimeout = None,
        version: Any = None,
        checkout: Checkout | int | None = None,
    ) -> R:
        """The same as :meth:`run` for asyncio: the function is a coroutine function.

        The functions run in a task of their own, so that the cancellation of a caller does not
        touch the others.  A caller that is cancelled before its function begins takes it out.
        After that the function is saved as if its caller were still there, unless it has to run again.
        """
        name = "the function of gate.async_run()"
        check_function(name, function, "of the session and the document", arguments=2)
        checked = partial(call_checked, name, True, function)
        call = new_call(session_factory, entity, ident, checked, lock_timeout, version, checkout)
        return await self._combined.async_run(call)  # type: ignore[no-any-return]

    @property
    def waiting(self) -> int:
        """The number of sessions, and of functions of :meth:`run`, that wait now."""
        with self._mutex:
            found = sum(len(queue.waiting) for queue in self._queues.values())
        self._process_leaving()
        return found + self._combined.waiting

    def __repr__(self) -> str:
        return f"<DocumentGate: {self.waiting} waiting, {len(self._queues)} documents>"

    def enter(
        self,
        entry: QueueEntry,
        *,
        seconds: float | None,
        under_asyncio: bool,
        waiting: Callable[[], AbstractContextManager[None]] = observed_wait,
    ) -> bool:
        """Wait to be admitted; return False if the time is over before.

        Whoever calls it has to call ``leave()`` in the end, whatever this call has met.

        :param waiting: makes the block of the wait, where there is one.
        """
        with self._mutex:
            entry.queue = queue = self._queues.setdefault(entry.key, entry.queue)
            if not queue.waiting and queue.can_admit(entry):
                queue.admitted[entry] = None
            else:
                entry.wakeup = TaskWakeup() if under_asyncio else Wakeup()
                queue.waiting.append(entry)
        self._process_leaving()
        if entry.wakeup is None:
            return True
        with waiting():
            entry.wakeup.wait(seconds)
        with self._mutex:
            admitted = entry.admitted
        self._process_leaving()
        return admitted

    def note_granted(self, entries: Iterable[QueueEntry]) -> None:
        """Note that the database has granted their locks."""
        with self._mutex:
            for entry in entries:
                if entry.admitted and not entry.granted:
                    entry.granted = True
                    self._admit_next(entry.key, entry.queue)
        self._process_leaving()

    def leave(self, entries: Iterable[QueueEntry]) -> None:
        """Give up these entries, a second time too; it waits for nothing.

        So a garbage collection may call it.
        """
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
                    self._remove(self._leaving[0])
                    self._leaving.popleft()  # last: an interruption before it changes nothing
            finally:
                self._mutex.release()

    def _remove(self, entry: QueueEntry) -> None:
        if entry.admitted:
            del entry.queue.admitted[entry]
        else:
            with suppress(ValueError):  # it has left before, or has never entered
                entry.queue.waiting.remove(entry)
        self._admit_next(entry.key, entry.queue)

    def _admit_next(self, key: Hashable, queue: _DocumentQueue) -> None:
        while queue.waiting and queue.can_admit(queue.waiting[0]):
            entry = queue.waiting.popleft()
            assert entry.wakeup is not None
            queue.admitted[entry] = None
            if not entry.wakeup.notify():
                del queue.admitted[entry]
        if not queue.waiting and not queue.admitted and self._queues.get(key) is queue:
            del self._queues[key]


@dataclass(slots=True, eq=False)
class _DocumentQueue:
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
        return entry.next_may_follow and all(one.granted for one in self.admitted)


@dataclass(slots=True, eq=False)
class QueueEntry:
    """One session in the queue of one document.

    :param next_may_follow: the server has a queue, in which it can wait behind who holds the document.
    :ivar wakeup: ends its wait; None where it was admitted at once.
    :ivar granted: the database has granted the lock.
    """

    key: Hashable
    shared: bool
    next_may_follow: bool
    queue: _DocumentQueue = field(default_factory=_DocumentQueue)
    wakeup: Wakeup | None = None
    granted: bool = False

    @property
    def admitted(self) -> bool:
        """Return whether it may ask the server, or has done so."""
        return self in self.queue.admitted


# Global, for a process that forks: whoever waits in the parent does not leave in the child.
# Threads: add() is atomic; only the child of a fork goes through it, which has one thread.
_gates: weakref.WeakSet[DocumentGate] = weakref.WeakSet()


def _forked() -> None:
    # A session in the parent's queues does not leave them in the child, nor a thread a mutex.
    for gate in _gates:
        gate._reset()  # noqa: SLF001  # its own module's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
