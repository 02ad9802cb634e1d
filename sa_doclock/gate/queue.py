"""DocumentGate: those of one process who want the same document queue before they connect.

Why it cannot deadlock.  Only a transaction's first lock queues here, before the session has a
connection; every later one goes past the gate to the database.  So whoever waits here holds
nothing that another could wait for: no lock, no connection, no savepoint.  (Of several documents
that one call asks for, those that come first: they are taken in ascending order, by everybody, and
so are the places at the gate.)  A circle needs a waiter that is waited for; it cannot lead through
the gate, and the database sees every circle that does not.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Hashable, Iterable
from contextlib import suppress
from typing import Literal

from .wakeup import Bell, bell

SecondSession = Literal["refuse", "allow"]


class DocumentGate:
    """A queue for each document, in front of the connection pool, for the sessions of a process.

    ``sessionmaker(engine, class_=LockingSession, gate=DocumentGate())``, and in the same way
    ``async_sessionmaker(engine, class_=AsyncLockingSession, ...)``.  Without it everybody who waits
    for a document waits with a connection in hand, and twenty who want the same one leave nothing
    of a pool of twenty for all others.  With it, one of a document's line waits at the server, and
    the others wait here, in the order in which they came.  It serves threads and asyncio alike,
    several event loops included.

    Nobody has a document on the gate's word alone: the lock of the database is always taken as
    well, and it alone keeps out other processes.

    - Queued is what a transaction locks first, by key: :meth:`LockingSession.get_entity` and its
      relatives, and ``lock_key()``, under ForUpdate or SharedRead.  Readers go in side by side; one
      that comes after a writer waits behind it.
    - Not queued is a lock in a transaction that has its connection already (after an earlier read
      or lock), of a session on a Connection, with NoWait or SkipLocked, of an ``entity_set()``,
      and SnapshotRead.  They ask the database, as without a gate.
    - ``lock_timeout`` is for both waits together.  What has been waited here is taken off what the
      server may wait, which is then rounded up to a tenth of the whole.  Without one, the gate
      waits as long as the server is configured to, as its first connection tells, and then the
      server again.
    - A session with ``priority="batch"`` does not stand in the line, and does not try for a
      document while others want it.
    - The place is given up with the lock: at the end of the transaction, at the rollback of the
      savepoint that it was taken in, with the connection that is lost, and by a session that
      nobody has closed when it is garbage-collected.

    A gate counts documents of different engines, and of different ``schema_translate_map``,
    apart.  It does not see a schema that is chosen on the connection, by ``search_path`` or USE:
    there, documents with the same key wait for each other.

    :param next_waits_at_server: when the lock is granted to one, the next of the line goes to the
        server and waits there, with a connection, so that no time is lost between them.  False:
        it waits here until the transaction has ended, and the document has one connection in all.
    :param second_session: ``"refuse"``: a task, or thread, that holds a lock in one session and
        asks for a connection in another, of the same gate and the same pool, gets
        :class:`LockMisuse` at once.  When as many as the pool has connections do that, each waits
        for the others, and no database sees it.  ``"allow"`` lets it.
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
        self.refuses_second = second_session == "refuse"
        self._start_over()
        _gates.add(self)

    def _start_over(self) -> None:
        self._lines: dict[Hashable, _Line] = {}
        self._left: deque[Place] = deque()
        self._mutex = threading.Lock()

    @property
    def waiting(self) -> int:
        """The number of entries that wait now."""
        with self._mutex:
            found = sum(len(line.waiting) for line in self._lines.values())
        self._settle()
        return found

    def __repr__(self) -> str:
        return f"<DocumentGate: {self.waiting} waiting, {len(self._lines)} documents>"

    # What follows is for sessions.

    def enter(
        self,
        key: Hashable,
        *,
        shared: bool,
        next_may_follow: bool,
        seconds: float | None,
        under_asyncio: bool,
    ) -> Place | None:
        """Wait for a place; None where the time is over before.

        :param next_may_follow: the server has a queue, in which the next one can wait.
        """
        place = Place(key, shared, next_may_follow and self.next_waits_at_server)
        place.line = _Line()
        try:
            with self._mutex:
                place.line = line = self._lines.setdefault(key, place.line)
                if not line.waiting and line.lets_in(place):
                    line.let_in(place)
                else:
                    place.bell = bell(under_asyncio=under_asyncio)
                    place.queued = True
                    line.waiting.append(place)
            if self._left:
                self._settle()
            if place.bell is None:
                return place
            place.bell.wait(seconds)
        except BaseException:
            self.leave([place])
            raise
        with self._mutex:
            inside = place.inside
        if not inside:
            self.leave([place])
            return None
        self._settle()
        return place

    def granted(self, places: Iterable[Place]) -> None:
        """The database has granted their locks."""
        with self._mutex:
            for place in places:
                if place.inside and not place.granted:
                    place.granted = True
                    place.line.ungranted -= 1
                    self._admit(place.key, place.line)
        if self._left:
            self._settle()

    def leave(self, places: Iterable[Place]) -> None:
        """Give them up; those that were given up already stay so.

        Waits for nothing, so that it may be called out of a garbage collection.
        """
        self._left.extend(places)
        self._settle()

    def busy(self, key: Hashable, *, shared: bool) -> bool:
        """Return whether an entry for this document would block this lock."""
        with self._mutex:
            line = self._lines.get(key)
            found = line is not None and not (
                shared and not line.waiting and line.readers_are_let_in
            )
        self._settle()
        return found

    def _settle(self) -> None:
        # Whoever cannot have the mutex leaves it to whom has it, and looks here after it.
        while self._left and self._mutex.acquire(blocking=False):
            try:
                while self._left:
                    self._take_out(self._left.popleft())
            finally:
                self._mutex.release()

    def _take_out(self, place: Place) -> None:
        if place.inside:
            place.line.let_out(place)
        else:
            with suppress(ValueError):  # it was never in the line, or has left it before
                place.line.waiting.remove(place)
        self._admit(place.key, place.line)

    def _admit(self, key: Hashable, line: _Line) -> None:
        while line.waiting and line.lets_in(line.waiting[0]):
            place = line.waiting.popleft()
            assert place.bell is not None
            line.let_in(place)
            if not place.bell.ring():
                line.let_out(place)
        if not line.waiting and not line.inside and self._lines.get(key) is line:
            del self._lines[key]


class Place:
    """A session's place in the line of one document."""

    __slots__ = ("bell", "granted", "inside", "key", "line", "next_may_follow", "queued", "shared")

    line: _Line

    def __init__(self, key: Hashable, shared: bool, next_may_follow: bool) -> None:
        self.key = key
        self.shared = shared
        self.next_may_follow = next_may_follow
        self.bell: Bell | None = None
        self.queued = False
        self.inside = False
        self.granted = False


class _Line:
    """The queue of one document: the entries that were admitted, and those that wait."""

    def __init__(self) -> None:
        self.waiting: deque[Place] = deque()
        self.readers = 0
        self.writers = 0
        self.ungranted = 0  # of both

    @property
    def inside(self) -> int:
        return self.readers + self.writers

    @property
    def readers_are_let_in(self) -> bool:
        """Return whether readers hold it, so that one more is granted at once."""
        return not self.writers and self.ungranted < self.readers

    def lets_in(self, place: Place) -> bool:
        if not self.inside or (place.shared and self.readers_are_let_in):
            return True
        return place.next_may_follow and not self.ungranted

    def let_in(self, place: Place) -> None:
        place.inside = True
        self._count(place, 1)

    def let_out(self, place: Place) -> None:
        place.inside = False
        self._count(place, -1)

    def _count(self, place: Place, by: int) -> None:
        if place.shared:
            self.readers += by
        else:
            self.writers += by
        if not place.granted:
            self.ungranted += by


_gates: weakref.WeakSet[DocumentGate] = weakref.WeakSet()


def _forked() -> None:
    # Who is in the parent's lines does not leave them in the child.
    for gate in _gates:
        gate._start_over()  # noqa: SLF001  # its own module's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
