"""ClaimLoop: the loop behind the ordinary and the asynchronous iterator of claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, TypeVar

from sqlalchemy import Select

from ..errors import LockFailed, LockMisuse, LockNotAvailable
from ..lock_info import Identity
from ..options import LockOptions, LockTimeout, check_positive, check_wait
from ..session import LockingSession
from .candidates import PAGE, Candidates
from .locking import lock_matching
from .query import ClaimQuery
from .report import ClaimReport, ReportBuilder
from .sessions import ClaimSessions, discard_session
from .transaction import Claim, ClaimTransaction, log_errors_of

T = TypeVar("T")
OnError = Literal["raise", "collect"]

LARGEST_BATCH = 500
_SPARE_KEYS = 100  # read beyond the limit, in place of those that others hold or process
_QUEUE, _SKIP = LockOptions.ForUpdate, LockOptions.ForUpdate | LockOptions.SkipLocked


class ClaimLoop(Generic[T]):
    """One loop over claims: it locks the next rows, and keeps the transaction that holds them.

    :ivar report: the results so far.
    :ivar transaction: the one of the claim that came up last; None when nothing is held.
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
    ) -> None:
        self._query = ClaimQuery(statement, order_by)
        self._lock, self._seconds = check_wait(_QUEUE, lock_timeout)
        self._skips = lock_timeout is None
        self._left: float = math.inf if limit is None else check_positive("limit", limit)
        self._batch = check_positive("batch", batch)
        if batch > LARGEST_BATCH:
            raise ValueError(f"batch={batch!r} is more than one statement locks: {LARGEST_BATCH}")
        if on_error not in ("raise", "collect"):
            raise ValueError(f'on_error must be "raise" or "collect", not {on_error!r}')
        if not callable(sleep):
            raise TypeError(f"sleep must be a function of seconds, not {sleep!r}")
        self._collect = on_error == "collect"
        self.report = ClaimReport()
        self._builder = ReportBuilder(self.report, remembers=bool(until_empty))
        self._sessions = ClaimSessions(session_factory, self._query, self.report)
        self._candidates = Candidates(
            self._query,
            self._sessions.read,
            self._builder,
            page=PAGE if limit is None else min(PAGE, limit + _SPARE_KEYS),
            until_empty=bool(until_empty),
            attempts=check_positive("attempts", attempts),
            sleep=sleep,
        )
        self.transaction: ClaimTransaction[T] | None = None

    def next(self) -> Claim[T] | None:
        """Give back a claim that was not entered, and return the next one; None at the end."""
        if self.transaction is not None and self.transaction.in_block:
            raise LockMisuse("the next row comes up when the block of this one has ended")
        while True:
            claim = self._next_of_transaction()
            if claim is not None:
                self._left -= 1
                return claim
            self.release()
            count = int(min(self._batch, self._left))
            keys = self._candidates.take(count) if count else []
            if not keys:
                return None
            self.transaction = self._lock_free(keys)
            self._candidates.note_try(claimed=self.transaction is not None)

    def release(self) -> None:
        """Commit the blocks that have ended, and unlock the rest.

        While a block is running, this is done at its end.
        """
        if self.transaction is not None:
            transaction, self.transaction = self.transaction, None
            try:
                transaction.end()
            finally:
                self._candidates.requeue(transaction.remaining_keys())

    def release_and_log(self) -> None:
        """Release without a caller who could get an error: only the report and the log have it."""
        log_errors_of(self.release)

    def _next_of_transaction(self) -> Claim[T] | None:
        if self.transaction is None or self.transaction.closed or not self._left:
            return None
        return self.transaction.next()

    def _lock_free(self, keys: Sequence[Identity]) -> ClaimTransaction[T] | None:
        """Lock the rows that are free and still match; return None if there are none."""
        queues = self.report.serialised or not self._skips
        try:
            try:
                return self._lock_keys(keys, self._lock if queues else _SKIP)
            except LockNotAvailable:
                if not queues:
                    raise
            if len(keys) == 1 or self.report.serialised:
                self._builder.skipped(keys)
                return None
            return self._lock_keys(keys, _SKIP)
        except LockFailed as error:
            self._builder.failed(keys, error)
            if not self._collect:
                raise
            return None

    def _lock_keys(self, keys: Sequence[Identity], lock: LockOptions) -> ClaimTransaction[T] | None:
        session = self._sessions.open()
        transaction = session.begin()
        try:
            transaction.__enter__()
            rows = self._lock_rows(session, keys, lock)
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
        """Lock the rows and return them in the order of ``keys``; report those that are missing."""
        skips = LockOptions.SkipLocked in lock
        seconds = None if skips else self._seconds
        found = lock_matching(session, self._query, keys, lock, seconds)
        missing = [key for key in keys if key not in found]
        held: set[Identity] = set()
        if missing and skips:
            held = set(map(tuple, session.execute(self._query.matching(missing))))
        self._builder.skipped(held)
        self._builder.no_longer_matching(set(missing) - held)
        return {key: found[key] for key in keys if key in found}
