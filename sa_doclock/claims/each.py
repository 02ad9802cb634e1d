"""Claims: an iterator over rows that many workers share, each row for one of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Literal, TypeVar
from weakref import finalize

from sqlalchemy import Select

from ..errors import CheckedOut, LockFailed, LockMisuse, LockNotAvailable
from ..functions import check_function
from ..keys import Identity
from ..options import LockOptions, LockTimeout, check_positive, check_wait
from ..session import LockingSession
from .candidates import Candidates, page_for
from .query import QUEUE, SKIP, ClaimQuery, lock_matching
from .report import ClaimReport, ReportBuilder
from .sessions import ClaimSessions, discard_session
from .transaction import Claim, ClaimTransaction, log_errors_of

T = TypeVar("T")
OnError = Literal["raise", "collect"]

LARGEST_BATCH = 500


class Claims(Generic[T]):
    """The iterator that claim_each() returns, with a report; for one thread at a time.

    It gives its rows back when you leave the ``for`` loop early, by :meth:`close`, at the end of
    ``with claim_each(...) as claims:``, and when it is garbage-collected.  Another ``for``
    continues where the last one ended.

    :ivar report: the results so far; you can read it at any time.
    """

    def __init__(
        self,
        session_factory: Callable[[], LockingSession],
        statement: Select[Any],
        *,
        limit: int | None,
        order_by: Any,
        lock_timeout: LockTimeout,
        on_error: OnError,
        until_empty: bool,
        batch: int,
        attempts: int,
        sleep: Callable[[float], object],
        one_per: Any = None,
    ) -> None:
        self._query = ClaimQuery(statement, order_by, one_per)
        self._lock, self._seconds = check_wait(QUEUE, lock_timeout)
        self._skips = lock_timeout is None
        self._left: float = math.inf if limit is None else check_positive("limit", limit)
        self._batch = check_positive("batch", batch)
        if batch > LARGEST_BATCH:
            raise ValueError(f"batch must be at most {LARGEST_BATCH}, not {batch!r}")
        if on_error not in ("raise", "collect"):
            raise ValueError(f'on_error must be "raise" or "collect", not {on_error!r}')
        check_function("sleep", sleep, "of seconds", arguments=1, instead="async_claim_each()")
        self._collect = on_error == "collect"
        self.report = ClaimReport()
        self._builder = ReportBuilder(self.report, remembers=bool(until_empty))
        self._sessions = ClaimSessions(session_factory, self._query, self.report)
        self._candidates = Candidates(
            self._query,
            self._reader(),
            self._builder,
            page=page_for(limit),
            until_empty=bool(until_empty),
            attempts=check_positive("attempts", attempts),
            sleep=sleep,
        )
        self._transaction: ClaimTransaction[T] | None = None
        self._finalizer: finalize[[Callable[[], None]], Claims[T]] | None = None

    def __iter__(self) -> Iterator[Claim[T]]:
        # Only the for statement refers to this generator, so leaving the loop closes it.
        with self:
            while (claim := next(self, None)) is not None:
                yield claim

    def __next__(self) -> Claim[T]:
        if self._transaction is not None and self._transaction.in_block:
            raise LockMisuse("leave the block of this claim before you ask for the next one")
        while True:
            transaction = self._transaction
            if transaction is not None and not transaction.closed and self._left:
                claim = transaction.next()
                if claim is not None:
                    self._left -= 1
                    return claim
            self.close()
            count = int(min(self._batch, self._left))
            keys = self._take_keys(count) if count else []
            if not keys:
                raise StopIteration
            self._hold(self._lock_free(keys))
            self._candidates.note_try(claimed=self._transaction is not None)

    def close(self) -> None:
        """Commit the blocks that have ended, and unlock the rest.

        If a block is running, this happens at its end.

        :raises Exception: a batch's commit failed, unless failures are collected.
        """
        transaction = self._transaction
        if transaction is not None:
            self._hold(None)
            try:
                transaction.end()
            finally:
                self._candidates.requeue(key for key, _ in transaction.remaining)

    def __enter__(self) -> Claims[T]:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self.close()
        else:
            log_errors_of(self.close)

    def _reader(self) -> Callable[[Select[Any]], Sequence[Identity]]:
        """Return the function that reads keys; it must not refer to self, which is freed with its loop."""
        return self._sessions.read

    def _take_keys(self, count: int) -> list[Identity]:
        return self._candidates.take(count)

    def _hold(self, transaction: ClaimTransaction[T] | None) -> None:
        if self._finalizer is not None:
            self._finalizer.detach()
        self._transaction, self._finalizer = transaction, None
        if transaction is not None:
            self._finalizer = finalize(self, log_errors_of, transaction.end)
            self._finalizer.atexit = False

    def _lock_free(self, keys: Sequence[Identity]) -> ClaimTransaction[T] | None:
        """Lock the rows that are free and still match; return None if there are none."""
        try:
            return self._lock_or_skip(keys)
        except CheckedOut as taken:
            return self._lock_others(keys, taken)
        except LockFailed as error:
            self._builder.failed(keys, error)
            if not self._collect:
                raise
            return None

    def _lock_or_skip(self, keys: Sequence[Identity]) -> ClaimTransaction[T] | None:
        """Lock these rows; if one is held for too long, lock the free ones."""
        queues = self.report.serialised or not self._skips
        try:
            return self._lock_keys(keys, self._lock if queues else SKIP)
        except LockNotAvailable:
            if not queues:
                raise
        if len(keys) == 1 or self.report.serialised:
            self._builder.skipped(keys)
            return None
        return self._lock_keys(keys, SKIP)

    def _lock_others(
        self, keys: Sequence[Identity], error: CheckedOut
    ) -> ClaimTransaction[T] | None:
        """Lock the remaining rows after one of them was found checked out."""
        ident = None if error.checkout is None else error.checkout.ident
        taken = {ident if isinstance(ident, tuple) else (ident,)}
        if len(keys) > 1:
            taken |= self._sessions.find_taken(keys)
        others = [key for key in keys if key not in taken]
        if len(others) == len(keys):  # the database stores the key in another form
            others = []
        self._builder.skipped([key for key in keys if key not in others])
        self._candidates.skip(self._sessions.find_taken)
        return self._lock_free(others) if others else None

    def _lock_keys(self, keys: Sequence[Identity], lock: LockOptions) -> ClaimTransaction[T] | None:
        return self._open(lambda session: self._lock_rows(session, keys, lock))

    def _open(
        self, lock: Callable[[LockingSession], dict[Identity, T]]
    ) -> ClaimTransaction[T] | None:
        session = self._sessions.open()
        transaction = session.begin()
        try:
            transaction.__enter__()
            rows = lock(session)
        except BaseException:
            discard_session(session)
            raise
        if not rows:
            discard_session(session)
            return None
        return ClaimTransaction(
            session,
            transaction,
            rows,
            self._builder,
            savepoints=self._batch > 1,
            collect=self._collect,
        )

    def _lock_rows(
        self, session: LockingSession, keys: Sequence[Identity], lock: LockOptions
    ) -> dict[Identity, T]:
        """Lock the rows and return them in the order of ``keys``; report the missing ones."""
        skips = LockOptions.SkipLocked in lock
        seconds = None if skips else self._seconds
        found = lock_matching(session, self._query, keys, lock, seconds)
        missing = [key for key in keys if key not in found]
        held: set[Identity] = set()
        if missing and skips:
            matching = session.execute(self._query.matching(missing))
            held = {self._query.split(row)[0] for row in matching}
        self._builder.skipped(held)
        self._builder.no_longer_matching(set(missing) - held)
        return {key: found[key] for key in keys if key in found}
