"""The lock timeout of a statement: in its text, where the dialect has it there, and by a further try."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, ref

from sqlalchemy import Select
from sqlalchemy.exc import DBAPIError

from ...dialects import SECONDS_WITHOUT_WAIT, code_of
from ...dialects.base import LockStrategy
from ...errors import LockNotAvailable
from ...options import LockOptions
from ..lock_request import LockCall

R = TypeVar("R")

Statement = Callable[[LockOptions], Select[Any]]
"""Returns the SELECT that carries this lock."""

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
    timed = strategy.waits.timed(statement, lock, seconds)
    if timed is not statement:  # which would keep itself alive
        _last[statement] = ref(strategy), seconds, timed
    return timed


class Send(NamedTuple):
    """Sends the statements of one lock, their wait limited.

    :ivar row_lock: the lock that they carry.
    :ivar whole_row: they read all columns of the row; see ``LockStatements.locks_what_is_read``.
    :ivar call: which has met no error where another try is made.
    """

    strategy: LockStrategy
    row_lock: LockOptions
    seconds: float | None
    whole_row: bool
    call: LockCall | None = None

    def __call__(self, statement_for: Statement, run: Callable[[Select[Any]], R]) -> R:
        """Return what ``run`` makes of the statement for the lock, with the limit in its text if may be.

        If the server's own limit for locks is shorter, it waits again for what is left.  If a limit
        for whole statements ended it, the statement may have been slow by itself: one last try without
        waiting shows whether a lock is held.

        :raises LockNotAvailable: the row was held all the time.
        :raises sqlalchemy.exc.OperationalError: the statement was too slow by itself.
        """
        strategy, lock, seconds, _, call = self
        statement, left = _timed(strategy, statement_for(lock), lock, seconds), seconds or 0.0
        while True:
            started = time.monotonic()
            try:
                return run(statement)
            except DBAPIError as error:
                left -= time.monotonic() - started
                slow = _may_be_slow(error, strategy, lock, seconds)
                if not slow and not _may_wait_again(error, strategy, left):
                    raise
                if call is not None:
                    call.met = None
                if slow:
                    break
            statement = strategy.waits.timed(statement_for(lock), lock, left)
        at_once = lock | LockOptions.NoWait
        limit = None if seconds is None else max(seconds, SECONDS_WITHOUT_WAIT)
        return run(_timed(strategy, statement_for(at_once), at_once, limit))


def _may_be_slow(
    error: DBAPIError, strategy: LockStrategy, lock: LockOptions, seconds: float | None
) -> bool:
    """Return whether a limit of whole statements ended it, perhaps with no lock in the way."""
    if not _ended_by(strategy.errors.statement_limits, strategy, error):
        return False
    if isinstance(error, LockNotAvailable):  # our own limit, too short for a busy server
        short = seconds is not None and seconds < SECONDS_WITHOUT_WAIT
        return short and LockOptions.NoWait not in lock
    return LockOptions.SkipLocked not in lock


def _may_wait_again(error: DBAPIError, strategy: LockStrategy, left: float) -> bool:
    """Return whether the server's own limit ended the wait before ours, and nothing else."""
    if left <= 0 or not isinstance(error, LockNotAvailable):
        return False
    return _ended_by(
        strategy.errors.server_limits - strategy.errors.rolls_back_transaction, strategy, error
    )


def _ended_by(codes: frozenset[Any], strategy: LockStrategy, error: DBAPIError) -> bool:
    return code_of(strategy.errors, error) in codes
