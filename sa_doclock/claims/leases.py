"""lease_each(): rows that many workers share, each checked out by one of them while it works.

One short transaction checks a row out, another saves it.  In between, the worker holds neither a
transaction nor a connection.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from threading import Condition, Thread
from typing import Any, Final, Generic, TypeVar, overload

from sqlalchemy import Select

from ..checkout_info import Checkout
from ..errors import CheckedOut, CheckoutLost, LockMisuse, LockNotAvailable
from ..features.checkouts import check_class, check_lease, check_note, check_owner
from ..keys import Identity, key_text, public_key
from ..options import check_positive
from ..session import LockingSession
from .candidates import KEYS_AT_ONCE, Candidates, page_for
from .query import QUEUE, SKIP, ClaimQuery, lock_matching
from .report import ClaimReport, ReportBuilder
from .sessions import ClaimSessions, check_factory

T = TypeVar("T")
_log = logging.getLogger("sa_doclock")

FIVE_MINUTES: Final = timedelta(minutes=5)
_FRACTION: Final = 3
_RETRIES: Final = 10  # of a failed renewal, before the lease ends


class Schedule(dict["Lease[Any]", float]):
    """The leases, with the times at which to renew them, by the process's clock."""

    def add(self, lease: Lease[Any]) -> None:
        """Renew this lease from now on."""
        self[lease] = time.monotonic() + lease.seconds / _FRACTION

    def due(self) -> list[Lease[Any]]:
        """Return the leases to renew now, the most urgent first."""
        now = time.monotonic()
        return sorted((lease for lease, at in self.items() if at <= now), key=self.__getitem__)

    def pause(self) -> float:
        """Return the seconds until the next one is due."""
        return max(0.0, min(self.values()) - time.monotonic())

    def note_renewed(self, lease: Lease[Any]) -> None:
        """Note that the lease was renewed."""
        if lease in self:
            self.add(lease)

    def note_failed(self, lease: Lease[Any], error: Exception) -> None:
        """Note that the renewal has failed: the lease is over, or it is tried again soon."""
        if lease not in self:  # its block has ended
            return
        if isinstance(error, CheckoutLost):
            del self[lease]
            _log.warning("lease_each: %s", error)
        else:
            self[lease] = time.monotonic() + lease.seconds / _FRACTION / _RETRIES
            _log.warning("lease_each: a lease could not be renewed, and is tried again: %s", error)


class HeartbeatThread:
    """The thread of this process that renews all leases, while there are any.

    It renews each lease a third of its time after the last renewal, as long as its block runs.  The
    thread ends with the last block, and with the interpreter.

    A renewal that hangs delays the renewals of other leases: set the driver's timeouts.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin again without leases, as in the child of a fork: the parent keeps them."""
        self._changed = Condition()
        self._schedule = Schedule()
        self._thread: Thread | None = None

    def add(self, lease: Lease[Any]) -> None:
        """Renew this lease from now on."""
        with self._changed:
            if self._thread is None:
                thread = Thread(target=self._run, name="sa_doclock leases", daemon=True)
                thread.start()  # raises if the process has too many threads
                self._thread = thread
            self._schedule.add(lease)
            self._changed.notify()

    def remove(self, lease: Lease[Any]) -> None:
        """Stop renewing it; a renewal in progress may still end."""
        with self._changed:
            self._schedule.pop(lease, None)
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

    def _renew(self, lease: Lease[Any]) -> None:
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


# Global: one thread per process.
# Threads: its lock protects everything that add() and remove() change.
heartbeat: Final = HeartbeatThread()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=heartbeat.reset)


class Lease(Generic[T]):
    """A row that this worker has checked out; enter it once, by ``with lease:``.

    While the block runs, a heartbeat renews the check-out after each third of its time.  The end of
    the block checks the row in, even after an exception, so that another worker can take it.

    :ivar key: the primary key: a scalar, or a tuple if it is composite.
    :ivar row: the object as of the check-out, detached, for reading.
    """

    def __init__(self, leases: Leases[T], identity: Identity, row: T, checkout: Checkout) -> None:
        self._leases, self.identity = leases, identity
        self._checkout = checkout
        self._lost = self._saved = self._entered = False
        self.row = row
        self.key: Any = public_key(identity)

    @property
    def checkout(self) -> Checkout:
        """The check-out, as last renewed."""
        return self._checkout

    @property
    def lost(self) -> bool:
        """True if a renewal has found that another worker has the row: stop working."""
        return self._lost

    @property
    def seconds(self) -> float:
        """The time of the lease, in seconds."""
        return self._checkout.lease.total_seconds()

    def renew(self) -> Checkout:
        """Renew the check-out now, in a separate transaction, as the heartbeat does.

        :raises CheckoutLost: another worker has the row.
        """
        try:
            with self._leases.open() as session:
                self._checkout = session.renew(self._checkout)
                session.commit()
        except CheckoutLost:
            self._lost = True
            raise
        return self._checkout

    @contextmanager
    def saving(self) -> Iterator[T]:
        """Return a block that locks the row under the epoch of the lease, and commits at its end.

        ``with lease.saving() as row:`` reads the row again in a session of its own
        (``object_session(row)``): other rows may have changed during the work.  The block works
        like that of ``session.locked()``.

        :raises CheckoutLost: another worker has had the row since; nothing is saved.
        """
        with (
            self._leases.open() as session,
            session.locked(self._leases.entity, self.key, checkout=self._checkout.epoch) as row,
        ):
            yield row
        self._saved = True

    def __enter__(self) -> Lease[T]:
        self.enter()
        try:
            heartbeat.add(self)
        except BaseException as error:
            self.leave(error)
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        heartbeat.remove(self)
        self.leave(error)

    def enter(self) -> None:
        """Begin the block.  :raises LockMisuse: it has begun before, or the lease has ended."""
        self._leases.check_process()
        if self._entered or self._leases.offered is not self:
            raise LockMisuse(
                f"the lease of {key_text(self.key)} has ended; enter each lease once, before the loop "
                "yields the next one"
            )
        self._entered, self._leases.offered = True, None

    def leave(self, error: BaseException | None) -> None:
        """End the block, and check the row in.

        A saved row counts as processed even if it cannot be checked in: its lease runs out.

        :raises CheckoutLost: another worker has the row, and this one has saved nothing.
        """
        builder = self._leases.builder
        if error is not None:
            builder.failed([self.identity], error)
        if error is None and not self._saved:
            try:
                self.check_in()
            except BaseException as failure:
                builder.failed([self.identity], failure)
                raise
        else:
            self.check_in_quietly()
        if error is None:
            builder.processed([self.identity])

    def check_in(self) -> None:
        """Check the row in.  :raises CheckoutLost: another worker has it."""
        with self._leases.open() as session:
            session.check_in(self._checkout)
            session.commit()

    def check_in_quietly(self) -> None:
        """Check the row in; if that fails, the lease expires."""
        if self._leases.is_of_parent():
            return  # which works on it
        try:
            self.check_in()
        except CheckoutLost:
            pass
        except Exception:  # noqa: BLE001  # an error is on its way already, or nobody waits
            _log.warning("lease_each: %s was not checked in", key_text(self.key), exc_info=True)


class Leases(Generic[T]):
    """The iterator that lease_each() returns, with a report; for one thread at a time.

    :ivar report: the results so far; you can read it at any time.
    :ivar offered: the lease that may be entered now.
    """

    def __init__(
        self,
        session_factory: Callable[[], LockingSession],
        statement: Select[Any],
        *,
        owner: str,
        lease: timedelta | float,
        note: str | None,
        limit: int | None,
        order_by: Any,
    ) -> None:
        self._query = ClaimQuery(statement, order_by, name="lease_each()")
        check_class(self._query.mapper)
        self.entity: Any = self._query.mapper.class_
        self._owner, self._note = check_owner(owner), check_note(note)
        self._lease = check_lease(lease)
        self._left: float = math.inf if limit is None else check_positive("limit", limit)
        self.report = ClaimReport()
        self.builder = ReportBuilder(self.report, remembers=False)
        self._sessions = ClaimSessions(session_factory, self._query, self.report)
        page = page_for(limit)
        self._candidates = Candidates(self._query, self._sessions.read, self.builder, page)
        self._free: deque[Identity] = deque()
        self.offered: Lease[T] | None = None

    def open(self) -> LockingSession:
        """Return a new session."""
        return self._sessions.open()

    def check_process(self) -> None:
        """:raises LockMisuse: the leases belong to another process."""
        self._sessions.check_process()

    def is_of_parent(self) -> bool:
        """Return whether the leases belong to the process from which this one was forked."""
        return self._sessions.is_of_parent()

    def __iter__(self) -> Iterator[Lease[T]]:
        try:
            while (lease := next(self, None)) is not None:
                yield lease
        finally:
            self.close()

    def __next__(self) -> Lease[T]:
        while True:
            self.close()
            key = self._next_key() if self._left else None
            if key is None:
                raise StopIteration
            self.offered = self._take([key])
            self._candidates.note_try(claimed=self.offered is not None)
            if self.offered is not None:
                self._left -= 1
                return self.offered

    def close(self) -> None:
        """Check in a row whose lease was yielded but not entered."""
        offered, self.offered = self.offered, None
        if offered is not None:
            self.builder.given_back([offered.identity])
            offered.check_in_quietly()

    def _next_key(self) -> Identity | None:
        """Return the next key whose row was free when it was read, or None at the end."""
        while not self._free:
            keys = self._candidates.take(KEYS_AT_ONCE)
            if not keys:
                return None
            taken = self._sessions.find_taken(keys)
            self.builder.skipped(taken)
            self._free.extend(key for key in keys if key not in taken)
        return self._free.popleft()

    def _take(self, keys: Sequence[Identity]) -> Lease[T] | None:
        """Check a row out; return None if it is held or no longer matches."""
        try:
            with self.open() as session, session.begin():
                lock = QUEUE if self.report.serialised else SKIP
                rows: dict[Identity, T] = lock_matching(session, self._query, keys, lock, None)
                if not rows:
                    still = set(map(tuple, session.execute(self._query.matching(keys))))
                    self.builder.skipped(still)
                    self.builder.no_longer_matching(set(keys) - still)
                    return None
                ((identity, row),) = rows.items()
                checkout = session.check_out(
                    self.entity, identity, self._owner, lease=self._lease, note=self._note
                )
                session.expunge_all()  # before the commit, which expires objects
        except (CheckedOut, LockNotAvailable):
            self.builder.skipped(keys)
            return None
        return Lease(self, identity, row, checkout)


@overload
def lease_each(
    session_factory: Callable[[], LockingSession],
    statement: Select[tuple[T]],  # SQLAlchemy 2.0
    *,
    owner: str,
    lease: timedelta | float = ...,
    note: str | None = ...,
    limit: int | None = ...,
    order_by: Any = ...,
) -> Leases[T]: ...


@overload
def lease_each(
    session_factory: Callable[[], LockingSession],
    statement: Select[T],  # SQLAlchemy 2.1
    *,
    owner: str,
    lease: timedelta | float = ...,
    note: str | None = ...,
    limit: int | None = ...,
    order_by: Any = ...,
) -> Leases[T]: ...


def lease_each(
    session_factory: Callable[[], LockingSession],
    statement: Select[Any],
    *,
    owner: str,
    lease: timedelta | float = FIVE_MINUTES,
    note: str | None = None,
    limit: int | None = None,
    order_by: Any = None,
) -> Leases[Any]:
    """Return an iterator of leases: for work of minutes or hours on rows that many workers share.

    In ``for lease in lease_each(...):``, do the work in ``with lease:``, and save its result at the
    end in ``with lease.saving() as row:``.  A short transaction locks each row, checks the
    conditions of the statement again, and checks the row out for this worker.  The work runs
    without a transaction and without a connection.  A heartbeat, one thread for all leases of the
    process, renews the check-out every third of ``lease``.

    At most one worker at a time can save a row: a worker that was stopped, or cut off, for longer
    than its lease can no longer save, and another may have its row.  Not promised: that the *work*
    begins only once.  Effects elsewhere, such as a mail or a payment, can happen twice.

    The saved row should no longer match the statement, as after ``row.state = "done"``.  Rows that
    others have checked out or locked are skipped.

    Example::

        jobs = select(Job).where(Job.state == "new")
        for lease in lease_each(Session, jobs, owner="worker-1"):
            with lease:
                with lease.saving() as job:
                    job.state = "done"

    :param session_factory: makes new :class:`LockingSession` objects, with ``checkouts=``.
    :param statement: a select of one class declared by ``@document(checkout=True)``, as for
        claim_each().
    :param owner: the name of this worker; each worker needs another one.
    :param lease: a timedelta or seconds; longer than any pause of the process that is not a
        failure.
    :param note: a text that others see beside the owner.
    :param limit: the largest number of leases.
    :param order_by: a column or several, if the statement has no ORDER BY.
    :returns: an iterator of :class:`Lease`, with ``report``.
    :raises TypeError: an argument is not a select, a factory, a number or an owner.
    :raises ValueError: not exactly one mapped class, a LIMIT, two orders, an empty owner.
    :raises LockMisuse: the class is declared without ``checkout=True``, or the sessions are made
        without ``checkouts=``.
    :raises LockNotSupported: the rows cannot be locked, as for :func:`claim_each`.
    """
    check_factory(session_factory, "lease_each()")
    return Leases(
        session_factory,
        statement,
        owner=owner,
        lease=lease,
        note=note,
        limit=limit,
        order_by=order_by,
    )
