"""claim_each(): an iterator of rows that many workers share, each row for one of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar
from weakref import finalize

from sqlalchemy import Select

from ..options import LockTimeout
from ..session import LockingSession
from .loop import ClaimLoop, OnError
from .report import ClaimReport
from .sessions import check_factory
from .transaction import Claim, ClaimTransaction

T = TypeVar("T")


class Claims(Generic[T]):
    """The iterator that claim_each() returns, with a report; for one thread at a time.

    A ``for`` loop that is left early gives back what it holds; so do :meth:`close`, the end of
    ``with claim_each(...) as claims:``, and the garbage collector. Another ``for``
    continues where the last one ended.
    """

    def __init__(self, loop: ClaimLoop[T]) -> None:
        self._loop = loop
        self._transaction: ClaimTransaction[T] | None = None
        self._finalizer: finalize[[], Claims[T]] | None = None

    @property
    def report(self) -> ClaimReport:
        """The results so far; they can be read at any time."""
        return self._loop.report

    def __iter__(self) -> Iterator[Claim[T]]:
        # A generator that only the for statement refers to: leaving the loop closes it.
        try:
            while (claim := self._next()) is not None:
                yield claim
        finally:
            self._loop.release_and_log()

    def __next__(self) -> Claim[T]:
        claim = self._next()
        if claim is None:
            raise StopIteration
        return claim

    def _next(self) -> Claim[T] | None:
        claim = self._loop.next()
        if self._transaction is not self._loop.transaction:
            self._finalize_with(self._loop.transaction)
        return claim

    def _finalize_with(self, transaction: ClaimTransaction[T] | None) -> None:
        # Not with the loop: it has functions of the program, which may refer to this object.
        if self._finalizer is not None:
            self._finalizer.detach()
        self._transaction, self._finalizer = transaction, None
        if transaction is not None:
            self._finalizer = finalize(self, transaction.end_and_log)
            self._finalizer.atexit = False

    def close(self) -> None:
        """Commit the blocks that have ended, and unlock the rest.

        :raises Exception: a batch's commit has failed, unless failures are collected.
        """
        self._loop.release()

    def __enter__(self) -> Claims[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self._loop.release_and_log()


def claim_each(
    session_factory: Callable[[], LockingSession],
    statement: Select[Any],
    *,
    limit: int | None = None,
    order_by: Any = None,
    lock_timeout: LockTimeout = None,
    on_error: OnError = "raise",
    until_empty: bool = False,
    batch: int = 1,
    attempts: int = 10,
    sleep: Callable[[float], object] = time.sleep,
) -> Claims[Any]:
    """Return an iterator of claims: each row of the statement comes up for one worker alone.

    ``for claim in claim_each(...):``, and in it ``with claim as row:``. The keys of the rows
    are read first, without a lock. Then each row is locked ForUpdate by its key, in a session
    and transaction of its own, and the conditions of the statement are checked again under the
    lock: rows that another worker has processed meanwhile are left out. The end of the block commits. An exception in it rolls back.

    How often a row is processed: *committed* at most once, as long as the block makes the row
    match no more; and by this call at most once in any case. What the block does outside of
    the database is done once more when the worker dies before its commit: see
    docs/claiming.md.

    Keys are read 1,000 at a time; rows that begin to match meanwhile may come up or not. Where
    no order is asked for it is the one of the keys, until other workers are met: then this one
    goes on somewhere else in the page, and comes back. In an order that is asked for, the keys
    of one pass are remembered, with ``until_empty`` those of the whole call: about 150 bytes a
    row.

    :param session_factory: makes new :class:`LockingSession` objects, as ``sessionmaker``.
    :param statement: a select of one mapped class or ``aliased()``, with any conditions, joins
        and loader options. One that reads other rows than the class's own table (a join,
        EXISTS, joined inheritance) costs a second statement a claim.
    :param limit: at most so many claims come up.
    :param order_by: a column, or several: in which order, where the statement does not say it.
    :param lock_timeout: None skips what others hold. Seconds, or a timedelta: queue for each row,
        and skip it then. SQLite locks the file, not rows: there None waits as the connection is
        configured (5 s), and seconds are for the wait for the file.
    :param on_error: ``"collect"`` keeps exceptions of blocks, commits and locks for
        ``report.failed`` and goes on. ``"raise"`` lets them out; a loop that catches them around
        its ``with`` can go on.
    :param until_empty: look for candidates again after the last one. A row that was processed,
        failed or given back does not come up again in this call, whatever it matches. It ends
        after a pass that finds no other candidates; or after ``attempts`` passes in a row that
        claimed none of those they found, since others held them (or they were gone). Between
        such passes it sleeps, with full jitter, up to 2 s.
    :param batch: so many rows a transaction, locked by one statement, up to 500. Each block has a
        savepoint, so that one that fails does not undo the others. They are committed together:
        after a crash all rows of the batch can be claimed again. When an exception comes out,
        what was done before it is committed, and the rest unlocked.
    :param attempts: see ``until_empty``.
    :param sleep: what waits, given seconds.
    :returns: an iterator of :class:`Claim`, with ``report``.
    :raises TypeError: not a select, a factory, a number.
    :raises ValueError: not exactly one mapped class, a LIMIT, two orders, no such ``on_error``.
    :raises LockNotSupported: rows that cannot be locked: DISTINCT, GROUP BY, ``joinedload()``, a
        view (that the database has one of this name is found before the first read).
    :raises LockMisuse: the statement has a lock; the next claim is asked for in a block.
    :raises LockFailed: out of the loop: a deadlock while locking, unless it is collected.
    """
    check_factory(session_factory)
    return Claims(
        ClaimLoop(
            session_factory,
            statement,
            limit=limit,
            order_by=order_by,
            lock_timeout=lock_timeout,
            on_error=on_error,
            until_empty=until_empty,
            batch=batch,
            attempts=attempts,
            sleep=sleep,
        )
    )
