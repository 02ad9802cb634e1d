"""The longest time that one session's transaction may hold its locks.

The server ends a transaction that sits idle for longer, where it can.  The clock here is looked at
whenever the session is used: on every database, because a limit of the server's is for idle
transactions alone, counts whole seconds on some, and is not there on others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any
from weakref import ref

from sqlalchemy import Connection, event

from ..options import LockOptions, is_row_lock
from .lock_lost import hold_limit_exceeded

if TYPE_CHECKING:
    from ..errors import LockLost
    from .connections import TransactionConnection
    from .state import TransactionState


class HoldLimit:
    """The limit of one session, from the first lock of a transaction to its end.

    A transaction that was opened by SnapshotRead has none: it keeps nobody waiting.

    :param seconds: how long the first lock of a transaction may be held.
    """

    def __init__(self, state: TransactionState, seconds: float) -> None:
        self.seconds = seconds
        self._state = ref(state)
        self._watched: list[Connection] = []

    def is_over(self) -> bool:
        """Return whether a lock has been held for longer; nothing is sent."""
        state = self._state()
        if state is None or state.connections.reads_snapshot:
            return False
        return state.ledger.held_for() > self.seconds

    def end_transaction(self) -> LockLost:
        """Roll the transaction back, refuse all that follows until ``rollback()``, return the error.

        The transaction of a Connection that was lent is left to its lender.
        """
        state = self._state()
        assert state is not None
        own = [one for one in state.connections.all() if not state.connections.is_lent(one)]
        error = hold_limit_exceeded(state, self.seconds)
        if state.pipeline is not None:
            state.pipeline.discard()
        for connection in own:
            _roll_back(connection)
        state.failure.refuse_from_now_on(error)
        if own:
            state.failure.note_server_rollback()
        if state.call is None:
            state.instrumentation.report_failed(error, None)
        return error

    def before_lock(self, one: TransactionConnection, lock: LockOptions) -> float | None:
        """Look at the clock before each statement of this connection, from now on.

        :returns: the seconds that the server is to be told with this lock; None: nothing.
        """
        if not is_row_lock(lock):
            return None
        self._watch(one.connection)
        state = self._state()
        assert state is not None
        if one.hold_limited or state.connections.is_lent(one.connection):
            return None
        one.strategy.keep_idle_clock(one.connection)
        return self.seconds

    def set_before(self, one: TransactionConnection, lock: LockOptions) -> None:
        """Limit the transaction at the server, before a lock with which that cannot travel."""
        seconds = self.before_lock(one, lock)
        if seconds is not None:
            one.strategy.limit_hold(one.connection, seconds)
            one.hold_limited = True

    def _watch(self, connection: Connection) -> None:
        if connection not in self._watched:
            self._watched.append(connection)
            event.listen(connection, "before_cursor_execute", self._before_statement)
            event.listen(connection, "commit", self._before_commit)
            event.listen(connection, "rollback", self._before_rollback)

    def stop_watching(self) -> None:
        """Look at the clock no more: the transaction has ended."""
        for connection in self._watched:
            event.remove(connection, "before_cursor_execute", self._before_statement)
            event.remove(connection, "commit", self._before_commit)
            event.remove(connection, "rollback", self._before_rollback)
        self._watched.clear()

    def _before_statement(
        self, _connection: Connection, _cursor: Any, statement: str, *_: Any
    ) -> None:
        if not statement.startswith("ROLLBACK") and self.is_over():  # to a savepoint
            raise self.end_transaction()

    def _before_commit(self, _connection: Connection) -> None:
        state = self._state()
        # Of several databases the first may have committed: then it is too late for an error that
        # says that nothing is saved.
        if state is not None and len(state.connections.all()) == 1 and self.is_over():
            raise self.end_transaction()

    def _before_rollback(self, connection: Connection) -> None:
        if self.is_over():
            _roll_back(connection)  # so that SQLAlchemy meets no error where the server is done


def _roll_back(connection: Connection) -> None:
    """Roll back, or give the connection up: the server may have ended it."""
    try:
        if not (connection.closed or connection.invalidated):
            connection.connection.rollback()
    except Exception as error:  # noqa: BLE001  # whatever it is, the connection is of no use
        connection.invalidate(error)


@contextmanager
def noting_limited(
    one: TransactionConnection, block: AbstractContextManager[None]
) -> Iterator[None]:
    """Run the block, which takes a lock; then the server has the limit."""
    with block:
        yield
    one.hold_limited = True
