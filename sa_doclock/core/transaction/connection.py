"""One connection of a session's transaction: its isolation level, and the locks taken on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ...dialects import strategy_for
from ...dialects.base import UNMARKED, LockStrategy
from ...dialects.savepoint_mark import is_spent
from ...errors import DocLockError, LockMisuse
from ...options import LockOptions
from ..pool import ReturnAction
from .plan import LockPlan

_NO_TRANSACTION: Final = (
    "the lock has ended with its statement: a COMMIT or ROLLBACK that the program has sent as text has "
    "ended the transaction, and this driver begins no other; call session.rollback(), and end a "
    "transaction with session.commit() or session.rollback() alone"
)


@dataclass(eq=False)
class TransactionConnection:
    """One connection that takes part in the session's transaction.

    :ivar known: how its database locks; None where nothing is known of the database.
    :ivar opened_for: the lock that its transaction was opened for.
    :ivar level: the isolation level of its transaction; None until a lock needs to know it.
    :ivar level_before: the level to restore, of a Connection that was lent to the session.
    :ivar mark: by which the transaction that has taken the locks is known again; None: not marked.
    :ivar in_doubt: a foreign statement may have ended it since.
    :ivar unmarked: a foreign statement runs, and the transaction could not be marked before it.
    :ivar begun: a lock was granted here, and the driver has not denied that a transaction is open.
    :ivar listened: listeners must be removed at the end.
    :ivar on_return: the actions of its return to the pool, from the commit on.
    """

    connection: Connection
    known: LockStrategy | None
    # What is not set for each transaction is left to the class.
    opened_for: LockOptions | None = field(default=None, init=False)
    level: str | None = field(default=None, init=False)
    level_before: str | None = field(default=None, init=False)
    mark: object = field(default=None, init=False)
    in_doubt: bool = field(default=False, init=False)
    unmarked: bool = field(default=False, init=False)
    begun: bool = field(default=False, init=False)
    listened: bool = field(default=False, init=False)
    on_return: dict[ReturnAction, None] | None = field(default=None, init=False)

    @property
    def strategy(self) -> LockStrategy:
        """The dialect of its database.  :raises LockNotSupported: nothing is known of it."""
        return self.known or strategy_for(self.connection)

    def note_lock(self, strategy: LockStrategy) -> None:
        """Note that a lock was granted here.

        :param strategy: the dialect of its database.
        :raises LockMisuse: it was granted in no transaction, and has ended with its statement.
        """
        if strategy.errors.ends_unseen and self.mark is None and strategy.marks is not None:
            self.mark = strategy.marks.mark_transaction(self.connection)
        if not self.begun:  # some drivers send BEGIN with the first statement
            status = strategy.status
            self.begun = status.in_transaction(self.connection) is not False
            if status.lock_needs_transaction and not self.begun:
                raise LockMisuse(_NO_TRANSACTION)

    def before_foreign(self) -> None:
        """Mark the transaction, in front of a statement that may end it."""
        known, self.unmarked = self.known, False
        marks = None if known is None else known.marks
        if known is None or marks is None or known.status.in_transaction(self.connection) is False:
            return
        if self.mark is None or is_spent(self.mark):
            self.mark = UNMARKED  # what is sent for the mark is no foreign statement
            mark = marks.mark_transaction(self.connection)
            self.unmarked = mark is UNMARKED
            self.mark = None if self.unmarked else mark
        self.in_doubt = self.mark is not None

    def driver_knows_end(self) -> bool:
        """Return whether the driver knows that the transaction has ended; nothing is sent."""
        connection, known = self.connection, self.known
        if connection.invalidated or connection.closed:
            return True
        return self.begun and known is not None and known.status.in_transaction(connection) is False

    def transaction_has_changed(self) -> bool:
        """Return whether the server says that this is not the transaction of the locks any more."""
        if self.connection.closed or self.connection.invalidated:
            return True
        marks = self.strategy.marks
        assert marks is not None  # it has been marked
        try:
            changed = not marks.has_mark(self.connection, self.mark)
        except DBAPIError as error:
            if isinstance(error, DocLockError) or not self._is_disconnect(error.orig):
                raise
            changed = False  # the next statement meets it, as an error of its own
        self.in_doubt = False
        if marks.is_savepoint:
            self.mark = None
        return changed

    def _is_disconnect(self, error: Any) -> bool:
        connection = self.connection
        driver: Any = connection.connection.dbapi_connection
        return connection.dialect.is_disconnect(error, driver, None)

    def note_ended(self) -> None:
        """Note that its transaction has ended at the server."""
        # The next transaction has the level of the connection, and not that of the lock.
        self.begun, self.opened_for, self.level = False, None, None
        self.mark, self.in_doubt, self.unmarked = None, False, False

    def row_lock(self, plan: LockPlan) -> LockOptions:
        """Return the lock that a SELECT must carry here, to give what was asked for."""
        if plan.level is None or plan.level == self.level:
            return plan.row_lock
        return self.strategy.statements.row_lock(plan.lock, self.level)
