"""The loop of claim_each(), as it is run by the ordinary and by the asynchronous iterator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, TypeVar

from sqlalchemy import Select

from ..errors import LockFailed, LockMisuse, LockNotAvailable
from ..lock_info import Identity
from ..options import LockOptions, LockTimeout, check_wait
from ..session import LockingSession
from .candidates import PAGE, Passes
from .claim import Claim
from .locking import lock_matching
from .query import Claimable
from .report import ClaimReport, Tally
from .sessions import Sessions, abandon
from .transaction import Turn, quietly

T = TypeVar("T")
OnError = Literal["raise", "collect"]

LARGEST_BATCH = 500
_BESIDE = 100  # keys read beyond the limit, for those that others hold or have processed
_QUEUE, _SKIP = LockOptions.ForUpdate, LockOptions.ForUpdate | LockOptions.SkipLocked


class ClaimLoop(Generic[T]):
    """One loop over claims: what comes up next, and what is held at the moment.

    :ivar report: what has become of the rows so far.
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
        self._claimable = Claimable(statement, order_by)
        self._lock, self._seconds = check_wait(_QUEUE, lock_timeout)
        self._skips = lock_timeout is None
        self._left = _positive("limit", limit) if limit is not None else None
        self._batch = _positive("batch", batch)
        if batch > LARGEST_BATCH:
            raise ValueError(f"batch={batch!r} is more than one statement locks: {LARGEST_BATCH}")
        if on_error not in ("raise", "collect"):
            raise ValueError(f'on_error must be "raise" or "collect", not {on_error!r}')
        if not callable(sleep):
            raise TypeError(f"sleep must be a function of seconds, not {sleep!r}")
        self._collect = on_error == "collect"
        self.report = ClaimReport()
        self._tally = Tally(self.report, remembers=bool(until_empty))
        self._sessions = Sessions(session_factory, self._claimable, self.report)
        self._passes = Passes(
            self._claimable,
            self._sessions.read,
            self._tally,
            page=PAGE if limit is None else min(PAGE, limit + _BESIDE),
            until_empty=bool(until_empty),
            attempts=_positive("attempts", attempts),
            sleep=sleep,
        )
        self._turn: Turn[T] | None = None

    @property
    def turn(self) -> Turn[T] | None:
        """What is held at the moment, if anything."""
        return self._turn

    def next(self) -> Claim[T] | None:
        """Give back what was not entered, and lock what comes up next; None at the end."""
        if self._turn is not None and self._turn.entered:
            raise LockMisuse("the next row comes up when the block of this one has ended")
        while True:
            if self._turn is not None:
                claim = None if self._turn.closed or self._left == 0 else self._turn.next()
                if claim is not None:
                    self._left = None if self._left is None else self._left - 1
                    return claim
                self.leave()
            if self._left == 0:
                return None
            keys = self._passes.take(min(self._batch, self._left or self._batch))
            if not keys:
                return None
            self._turn = self._take_turn(keys)
            self._passes.came_to(self._turn is not None)

    def leave(self) -> None:
        """Hold nothing any more: commit the blocks that have ended, and let go of the rest.

        Where a block is entered, that is done at its end.
        """
        if self._turn is not None:
            turn, self._turn = self._turn, None
            try:
                turn.end()
            finally:
                self._passes.put_back(turn.rest())

    def leave_quietly(self) -> None:
        """The same when nobody is there to be told but the report and the log."""
        quietly(self.leave)

    def _take_turn(self, keys: Sequence[Identity]) -> Turn[T] | None:
        """Lock those that are free and still match; None where that is none of them."""
        queues = self.report.serialised or not self._skips
        try:
            return self._locked(keys, self._lock if queues else _SKIP)
        except LockNotAvailable as error:
            if not queues:
                self._failed(keys, error)
                return None
        except LockFailed as error:
            self._failed(keys, error)
            return None
        if len(keys) == 1 or self.report.serialised:
            self._tally.skipped(keys)
            return None
        try:
            return self._locked(keys, _SKIP)
        except LockFailed as error:
            self._failed(keys, error)
            return None

    def _failed(self, keys: Sequence[Identity], error: LockFailed) -> None:
        self._tally.failed(keys, error)
        if not self._collect:
            raise error

    def _locked(self, keys: Sequence[Identity], lock: LockOptions) -> Turn[T] | None:
        session = self._sessions.open()
        transaction = session.begin()
        try:
            transaction.__enter__()
            seconds = None if LockOptions.SkipLocked in lock else self._seconds
            found = lock_matching(session, self._claimable, keys, lock, seconds)
            missing = [key for key in keys if key not in found]
            held: set[Identity] = set()
            if missing and LockOptions.SkipLocked in lock:
                rows = session.execute(self._claimable.matching(missing))
                held = {tuple(row) for row in rows}
        except BaseException:
            abandon(session)
            raise
        self._tally.skipped(held)
        self._tally.gone(key for key in missing if key not in held)
        if not found:
            abandon(session)
            return None
        return Turn(
            session,
            transaction,
            {key: found[key] for key in keys if key in found},
            self._tally,
            savepoints=self._batch > 1,
            collect=self._collect,
        )


def _positive(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be 1 or more, not {value!r}")
    return value
