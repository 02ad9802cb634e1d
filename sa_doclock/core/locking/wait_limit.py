"""WaitLimit: how long the statements of one lock may wait, and the server's setting for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, ref

from sqlalchemy import Select
from sqlalchemy.exc import DBAPIError

from ...dialects import SECONDS_WITHOUT_WAIT, code_of
from ...dialects.base import Ends, Limit, LockStrategy, LockWaits
from ...errors import LockNotAvailable
from ...options import LockOptions
from ..lock_request import FEW_ROWS, LockCall, LockRequest
from ..transaction import LockPlan, TransactionConnection

R = TypeVar("R")

Statement = Callable[[LockOptions], Select[Any]]
"""Returns the SELECT with this lock."""

# A statement by key, and its variant with a limit, must be the same object every time: SQLAlchemy
# caches facts about a statement on the object.  An entry lives as long as its statement.
# Threads: an entry is one tuple, replaced as a whole; two threads build equivalent statements.
_last: WeakKeyDictionary[Select[Any], tuple[ref[LockStrategy], float, Select[Any]]]
_last = WeakKeyDictionary()


class WaitLimit(NamedTuple):
    """The limit of the wait for one lock.

    A server takes it in one or both of two ways: as a setting of the connection, by :meth:`around`,
    or in the text of the statement, by :meth:`timed`.  If a limit of the server ends the wait
    first, :meth:`again` has the rest.

    :ivar lock: the lock in the statements.
    :ivar seconds: None: the server's own limit.
    :ivar call: its error is reset before another try.
    :ivar spent: the seconds that earlier tries have taken.
    """

    strategy: LockStrategy
    lock: LockOptions
    seconds: float | None
    call: LockCall | None = None
    spent: float = 0.0

    @staticmethod
    def around(
        connection: TransactionConnection, plan: LockPlan, request: LockRequest
    ) -> AbstractContextManager[None]:
        """Return the block in which the server limits the waits on this connection.

        A named lock has its limit in its own statement, and the program's own statement its own
        limit.
        """
        if request.mapper is None or request.as_is:
            return nullcontext()
        few_rows = 1 <= len(request.keys) <= FEW_ROWS  # request.few_rows, without a call
        waits = plan.strategy.waits
        return waits.limited(
            connection.connection, request.lock, request.seconds, few_rows=few_rows
        )

    def timed(self, statement: Select[Any]) -> Select[Any]:
        """Return the statement with the limit in its text, where the dialect writes it there."""
        strategy, left = self.strategy, self.left()
        last = _last.get(statement)
        if last is not None and last[0]() is strategy and last[1] == left:
            return last[2]
        timed = strategy.waits.timed(statement, self.lock, left)
        if timed is not statement:  # a cached value would keep its own key alive
            _last[statement] = ref(strategy), left, timed
        return timed

    def left(self) -> float:
        """Return the remaining seconds of the limit; 0 if only the server's own applies."""
        return 0.0 if self.seconds is None else self.seconds - self.spent

    def send(
        self,
        statement_for: Statement,
        run: Callable[[Select[Any]], R],
        first: Select[Any] | None = None,
    ) -> R:
        """Run the locking statement, with its time limit in the text where the dialect can write it there.

        :param first: the statement of the first try, where it is made already.
        :raises LockNotAvailable: the row was held all the time.
        :raises sqlalchemy.exc.OperationalError: the statement itself was too slow.
        """
        limit: WaitLimit = self
        in_text = type(self.strategy.waits).timed is not LockWaits.timed
        while True:
            statement = statement_for(limit.lock) if first is None else first
            first, started = None, time.monotonic()
            try:
                if in_text and limit.seconds is not None:
                    statement = limit.timed(statement)
                return run(statement)
            except DBAPIError as error:
                again = limit.again(error, time.monotonic() - started)
                if again is None:
                    raise
            limit = again

    def again(self, error: DBAPIError, waited: float) -> WaitLimit | None:
        """Return the limit of one more try after this error; None: there is none.

        If the server's own limit for locks is shorter, it waits again for the remaining time.  If a
        limit for whole statements ended it, the statement itself may have been slow: one last try
        without waiting shows whether a lock is held.
        """
        errors, seconds = self.strategy.errors, self.seconds
        row, again = errors[code_of(errors, error)], self._replace(spent=self.spent + waited)
        if row.limit is Limit.STATEMENT and self._may_be_slow(error):
            again = again._replace(
                lock=self.lock | LockOptions.NoWait,
                seconds=None if seconds is None else max(seconds, SECONDS_WITHOUT_WAIT),
                spent=0.0,
            )
        elif not (
            again.left() > 0
            and isinstance(error, LockNotAvailable)
            and row.limit is Limit.LOCK
            and row.ends is Ends.NOTHING
        ):
            return None
        if self.call is not None:
            self.call.met = None
        return again

    def _may_be_slow(self, error: DBAPIError) -> bool:
        """Return whether a limit for whole statements may have ended it without a lock in the way."""
        if LockOptions.NoWait in self.lock:
            return False
        if isinstance(error, LockNotAvailable):  # our own limit, too short for a busy server
            return self.seconds is not None and self.seconds < SECONDS_WITHOUT_WAIT
        return LockOptions.SkipLocked not in self.lock
