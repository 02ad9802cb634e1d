"""The lock timeout of a statement: in its text, and together with the server's own limits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

from sqlalchemy import Select
from sqlalchemy.exc import DBAPIError

from ...dialects.base import LockStrategy
from ...dialects.locking import SECONDS_WITHOUT_WAIT
from ...errors import LockNotAvailable
from ...options import LockOptions

T = TypeVar("T")

# A statement by key is the same object every time, and so it is with its limit: SQLAlchemy keeps
# what it knows of a statement on the object.  An entry lives as long as its statement.
# Threads: an entry is one tuple, read and replaced at once; of two threads' statements, which do
# the same, the later one stays.
_last: WeakKeyDictionary[Select[Any], tuple[ref[LockStrategy], float, Select[Any]]]
_last = WeakKeyDictionary()


def _timed(
    strategy: LockStrategy, statement: Select[Any], lock: LockOptions, seconds: float | None
) -> Select[Any]:
    if seconds is None:
        return statement
    last = _last.get(statement)
    if last is not None and last[0]() is strategy and last[1] == seconds:
        return last[2]
    timed = strategy.timed(statement, lock, seconds)
    if timed is not statement:  # which would keep itself alive
        _last[statement] = ref(strategy), seconds, timed
    return timed


def run_within(
    seconds: float | None,
    strategy: LockStrategy,
    lock: LockOptions,
    statement_for: Callable[[LockOptions], Select[Any]],
    run: Callable[[Select[Any]], T],
) -> T:
    """Run the statement for this lock, with the limit in its text where the database takes it.

    If the server's own limit for locks is shorter, it waits again for what is left.  If a limit
    for whole statements ended it, the statement may have been slow by itself: one last try without
    waiting shows whether a lock is held.

    :raises LockNotAvailable: the row was held all the time.
    :raises sqlalchemy.exc.OperationalError: the statement was too slow by itself.
    """
    statement = _timed(strategy, statement_for(lock), lock, seconds)
    at_once = lock | LockOptions.NoWait

    def last_try() -> T:
        limit = None if seconds is None else max(seconds, SECONDS_WITHOUT_WAIT)
        return run(_timed(strategy, statement_for(at_once), at_once, limit))

    left = seconds or 0.0
    while True:
        started = time.monotonic()
        try:
            return run(statement)
        except LockNotAvailable as error:
            if at_once != lock and _may_be_slow(seconds, strategy, error):
                return last_try()
            left -= time.monotonic() - started
            again = strategy.server_limits - strategy.rolls_back_transaction
            if left <= 0 or not _ended_by(again, strategy, error):
                raise
        except DBAPIError as error:
            by_limit = _ended_by(strategy.statement_limits, strategy, error)
            if LockOptions.SkipLocked in lock or not by_limit:
                raise
            return last_try()
        statement = strategy.timed(statement_for(lock), lock, left)


def _may_be_slow(seconds: float | None, strategy: LockStrategy, error: DBAPIError) -> bool:
    """Return whether our own limit ended it, which a busy server may exceed without a lock."""
    short = seconds is not None and seconds < SECONDS_WITHOUT_WAIT
    return short and _ended_by(strategy.statement_limits, strategy, error)


def _ended_by(codes: frozenset[Any], strategy: LockStrategy, error: DBAPIError) -> bool:
    return error.orig is not None and strategy.native_code(error.orig) in codes
