"""The longest time that one session's transaction may hold its locks.

The server ends a transaction that is idle for longer, if it can.  The clock here is checked
whenever the session is used, on every database, because server limits apply to idle transactions
only, count whole seconds on some databases, and are missing on others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final
from weakref import ref

from sqlalchemy import Connection

from ..core.instrumentation import report_failed
from ..core.ledger import Ledger
from ..core.transaction import (
    Limit,
    LockContext,
    LockPlan,
    LockRequest,
    SessionPart,
    TransactionConnection,
    about_held,
    others_text,
)
from ..errors import LockLost
from ..options import is_row_lock

_WATCHING: Final = "watching the hold limit"


class _Memory:
    """The state of one transaction.

    :ivar limited: the connections whose server has the limit, each with the ledger at that time.
    :ivar prepares: the first phase of a two-phase commit has begun: a ROLLBACK would not end it.
    """

    prepares = False

    def __init__(self) -> None:
        self.limited: dict[TransactionConnection, tuple[Ledger, int]] = {}


class HoldLimit(SessionPart):
    """The limit of one session, from the first lock of a transaction to its end: its ``Deadline``.

    A transaction opened by SnapshotRead has none: no session waits for it.

    :param seconds: how long the first lock of a transaction may be held.
    """

    def __init__(self, state: LockContext, seconds: float) -> None:
        self.seconds = seconds
        self._state = ref(state)

    def is_over(self) -> bool:
        """Return whether a lock has been held for longer; executes nothing."""
        state = self._state()
        if state is None or state.connections.reads_snapshot or self._memory(state).prepares:
            return False
        return state.ledger.held_for() > self.seconds

    def end_locks(self) -> LockLost | None:
        """See :class:`Deadline`."""
        return self._end_transaction() if self.is_over() else None

    def _end_transaction(self) -> LockLost:
        """Roll back, refuse everything until ``rollback()``, and return the error.

        The owner of a lent Connection must roll back by itself.
        """
        state = self._state()
        assert state is not None
        own = [used for used in state.connections.all() if not state.connections.is_lent(used)]
        error = _exceeded(state, self.seconds)
        for discard in state.parts.discard:
            discard()
        for connection in own:
            _roll_back(connection)
        state.transaction.refuse_from_now_on(error)
        if own:
            state.transaction.note_server_rollback(error)
        if state.calls.current is None:
            report_failed(state.session(), error, None)
        return error

    def around_limit(self, limit: Limit) -> Limit:
        """See :class:`SessionPart`: send the limit to the server together with the limit of the wait, if possible."""

        def limit_both(
            connection: TransactionConnection, plan: LockPlan, request: LockRequest
        ) -> AbstractContextManager[LockRequest | None]:
            seconds = self.limit_to_send(connection, request)
            if seconds is None:
                return limit(connection, plan, request)
            return self._limiting_both(connection, request, seconds)

        return limit_both

    @contextmanager
    def _limiting_both(
        self, connection: TransactionConnection, request: LockRequest, seconds: float
    ) -> Iterator[None]:
        strategy, few_rows = connection.strategy, request.few_rows
        pipeline = strategy.pipeline(connection.connection)
        if pipeline is not None:
            wait = pipeline.locking(request.seconds, None, few_rows=few_rows, hold_limit=seconds)
        else:
            assert strategy.hold_limit is not None
            strategy.hold_limit.limit(connection.connection, seconds)
            to_wait = connection.connection, request.lock, request.seconds
            wait = strategy.waits.limited(*to_wait, few_rows=few_rows)
        with wait:
            yield
        self.note_server_limited(connection)

    def limit_to_send(self, joined: TransactionConnection, request: LockRequest) -> float | None:
        """Return the seconds to send to the server with this lock.

        From now on, the clock is checked before each statement of this connection.

        :returns: None: the server has the limit already, or cannot take one.
        """
        if not is_row_lock(request.lock):
            return None
        self._watch(joined)
        state = self._state()
        assert state is not None
        server = joined.strategy.hold_limit
        lent = state.connections.is_lent(joined.connection)
        if server is None or lent:
            return None
        # A rollback to a savepoint may undo the setting.
        if self._memory(state).limited.get(joined) == (state.ledger, state.ledger.releases):
            return None
        # Only locks of rows have SELECTs that can carry the limit.
        if request.named or request.as_is:
            server.limit(joined.connection, self.seconds)
            self.note_server_limited(joined)
            return None
        return self.seconds

    def note_server_limited(self, joined: TransactionConnection) -> None:
        """Record that this server has the limit."""
        state = self._state()
        assert state is not None
        self._memory(state).limited[joined] = state.ledger, state.ledger.releases

    def _memory(self, state: LockContext) -> _Memory:
        return state.transaction.memory(self, _Memory)

    def _watch(self, joined: TransactionConnection) -> None:
        if not joined.is_listened(_WATCHING):
            joined.listen("before_cursor_execute", self._before_statement, _WATCHING)
            joined.listen("prepare_twophase", self._before_prepare, _WATCHING)
            joined.listen("commit", self._before_commit, _WATCHING)
            joined.listen("rollback", self._before_rollback, _WATCHING)

    def _before_statement(
        self, _connection: Connection, _cursor: Any, statement: str, *_: Any
    ) -> None:
        if not statement.startswith("ROLLBACK") and self.is_over():  # a rollback to a savepoint
            raise self._end_transaction()

    def _before_prepare(self, *_: Any) -> None:
        state = self._state()
        if state is None:
            return
        if self.is_over():
            raise self._end_transaction()
        # From here on, the server keeps the transaction even if its connection is lost.
        self._memory(state).prepares = True

    def _before_commit(self, _connection: Connection) -> None:
        state = self._state()
        # With several databases, the first may have committed: do not say that nothing is saved.
        if state is not None and len(state.connections.all()) == 1 and self.is_over():
            raise self._end_transaction()

    def _before_rollback(self, connection: Connection) -> None:
        if self.is_over():
            _roll_back(connection)  # SQLAlchemy gets no error if the server ended the transaction


def _roll_back(connection: Connection) -> None:
    """Roll back, or invalidate the connection, which the server may have ended."""
    try:
        if not (connection.closed or connection.invalidated):
            connection.connection.rollback()
    except Exception as error:  # noqa: BLE001  # whatever it is, the connection is of no use
        connection.invalidate(error)


def _exceeded(state: LockContext, seconds: float) -> LockLost:
    lent = any(map(state.connections.is_lent, state.connections.all()))
    done = (
        "call rollback(): nothing may be" if lent else "the transaction is rolled back, nothing is"
    )
    return about_held(
        state,
        LockLost(
            f"held{others_text(state)} for {state.ledger.held_for():.1f} s, past the hold_limit of "
            f"{seconds:g} s; {done} saved; run the whole transaction again, do less between "
            "the lock and the commit, or raise hold_limit"
        ),
    )
