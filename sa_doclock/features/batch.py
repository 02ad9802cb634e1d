"""Sessions with ``priority="batch"``: they never queue for a lock, but try again.

They take a lock by several tries with pauses between them, each try in a savepoint.  On SQL Server,
a batch session is also the preferred victim of a deadlock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from random import uniform
from typing import Any, TypeVar
from weakref import ref

from sqlalchemy import Connection

from ..core.transaction import (
    Condition,
    Limit,
    LockCall,
    LockContext,
    LockPlan,
    LockRequest,
    SessionPart,
    Take,
    TransactionConnection,
)
from ..dialects import strategies
from ..errors import LockNotAvailable
from ..interruptions import ErrorsIgnored
from ..options import LockOptions, is_row_lock, may_queue
from ..process_waits import pause

T = TypeVar("T")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5


class BatchPriority(SessionPart):
    """The tries of one session, none of which waits at the server."""

    def __init__(self, state: LockContext) -> None:
        self._state: Callable[[], LockContext] = ref(state)  # type: ignore[assignment]

    def begun(self, connection: Connection, *, lent: bool) -> None:
        """See :class:`SessionPart`: a deadlock ends this transaction rather than another."""
        strategy = strategies.get(connection.dialect)
        lowered = self._state().transaction.memory(self, set[Connection])
        if strategy is not None and connection not in lowered:  # savepoints raise the event too
            lowered.add(connection)
            strategy.waits.lower_deadlock_priority(connection)

    def around_take(self, take: Take) -> Take:
        """See :class:`SessionPart`: try without waiting, and pause, until the time is over."""

        def take_in_batch(call: LockCall, request: LockRequest, target: Any) -> Any:
            if request.as_is or not may_queue(request.lock):
                return take(call, request, target)
            assert request.seconds is not None  # BATCH_WAIT unless the program gives a limit

            def attempt(left: float) -> Any:
                at_once = request._replace(lock=request.lock | LockOptions.NoWait, seconds=left)
                return take(call, at_once, target)

            def sleep(seconds: float) -> None:
                state = self._begin_again(call)
                bind = state.session().get_bind(**request.bind_arguments)
                pause(seconds, under_asyncio=bind.dialect.is_async)

            return retry_without_queueing(request.seconds, attempt, sleep)

        return take_in_batch

    def around_limit(self, limit: Limit) -> Limit:
        """See :class:`SessionPart`: a try that fails changes nothing."""

        def limit_undone(
            connection: TransactionConnection, plan: LockPlan, request: LockRequest
        ) -> AbstractContextManager[LockRequest | None]:
            block = limit(connection, plan, request)
            rows = request.mapper is not None and is_row_lock(connection.row_lock(plan))
            if rows and LockOptions.NoWait in request.lock and not request.as_is:
                return self._undone_by_savepoint(connection.connection, block)
            return block

        return limit_undone

    @contextmanager
    def _undone_by_savepoint(
        self, connection: Connection, block: AbstractContextManager[LockRequest | None]
    ) -> Iterator[LockRequest | None]:
        """Run the block; roll back a lock that is not available, by a savepoint.

        On PostgreSQL the error aborts the transaction, and a refused lock on several rows may hold
        some.
        """
        state = self._state()
        call = state.calls.current
        assert call is not None
        savepoint = connection.begin_nested()
        call.undone_by_savepoint = True
        try:
            with block as limited:
                yield limited
        except LockNotAvailable:
            if state.transaction.condition is not Condition.LOST:
                savepoint.rollback()
                call.met = None
            raise
        except BaseException:
            with ErrorsIgnored():  # the server may have rolled back everything, or be gone
                savepoint.rollback()
            raise
        finally:
            call.undone_by_savepoint = False
        savepoint.commit()

    def _begin_again(self, call: LockCall) -> LockContext:
        """Return a usable state, after a new BEGIN if the refused try ended the transaction.

        :raises LockNotAvailable: the transaction had begun before the call, so earlier work is
            lost.
        """
        state = self._state()
        if state.transaction.condition is Condition.LOST:
            if not call.opens and call.met is not None:
                raise call.met
            state.roll_back_quietly()
        return state


def retry_without_queueing(
    seconds: float, attempt: Callable[[float], T], sleep: Callable[[float], None]
) -> T:
    """Return the result of an attempt whose lock was granted at once; pause between attempts.

    :param attempt: gets the remaining seconds, a whole number.
    :raises LockNotAvailable: the error of the last attempt.
    """
    until, left, longest = time.monotonic() + seconds, seconds, _FIRST_PAUSE
    while True:
        try:
            # Whole seconds keep the number of different statements small. NOWAIT covers rows only:
            # a try waits for a table that is being altered.
            return attempt(math.ceil(left) or 1.0)
        except LockNotAvailable:
            left = until - time.monotonic()
            if left <= 0:
                raise
        sleep(min(uniform(0, longest), left))  # noqa: S311  # for the pauses of two to differ
        longest = min(2 * longest, _LONGEST_PAUSE)
        left = max(until - time.monotonic(), 0.0)
