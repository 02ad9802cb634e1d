"""One locking statement and its limit: in its text, and what the server's other limits do to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

from sqlalchemy import Connection, Select
from sqlalchemy.exc import DBAPIError

from .dialects.base import LockStrategy
from .errors import LockNotAvailable
from .options import LockOptions

T = TypeVar("T")


#: A statement by key is the same object every time, and is to be so with its limit too: what
#: SQLAlchemy knows of it goes with the object.  One of a set is the caller's, and goes with it.
_last: WeakKeyDictionary[Select[Any], tuple[ref[LockStrategy], float, Select[Any]]]
_last = WeakKeyDictionary()


def _timed(strategy: LockStrategy, statement: Select[Any], seconds: float) -> Select[Any]:
    last = _last.get(statement)
    if last is not None and last[0]() is strategy and last[1] == seconds:
        return last[2]
    timed = strategy.timed(statement, seconds)
    if timed is not statement:  # which would keep itself alive
        _last[statement] = ref(strategy), seconds, timed
    return timed


def run_within(
    seconds: float | None,
    strategy: LockStrategy,
    connection: Connection,
    lock: LockOptions,
    statement_for: Callable[[LockOptions], Select[Any]],
    run: Callable[[Select[Any]], T],
) -> T:
    """Run the statement for this lock, with the limit in its text where the database takes it.

    Where the server's own limit for locks is shorter, it waits again for what is left.  Where a
    limit for whole statements has ended it, ours or another's, one last try without waiting tells
    whether it was the lock that it has waited for.

    :raises LockNotAvailable: the row was held all the time.
    :raises sqlalchemy.exc.OperationalError: the statement was too slow by itself.
    """
    statement = statement_for(lock)
    if seconds is None:
        left = 0.0
    else:
        left = seconds
        statement = _timed(strategy, statement, seconds)
    started = time.monotonic()
    while True:
        try:
            return run(statement)
        except LockNotAvailable as error:
            left -= time.monotonic() - started
            if left <= 0 or not _ended_by(strategy.server_limits, strategy, error):
                raise
            if not strategy.may_wait_again(connection):
                raise
        except DBAPIError as error:
            skips = LockOptions.SkipLocked in lock
            if skips or not _ended_by(strategy.statement_limits, strategy, error):
                raise
            last = statement_for(lock | LockOptions.NoWait)
            return run(last if seconds is None else strategy.limited(last, seconds))
        started = time.monotonic()
        statement = strategy.timed(statement_for(lock), left)


def _ended_by(codes: frozenset[Any], strategy: LockStrategy, error: DBAPIError) -> bool:
    return error.orig is not None and strategy.native_code(error.orig) in codes
