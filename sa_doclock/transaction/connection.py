"""One connection of a session's transaction: its isolation level, and the locks taken on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sqlalchemy import Connection

from ..dialects import strategy_for
from ..dialects.base import LockStrategy
from ..errors import LockMisuse
from ..options import LockOptions
from ..pool import ReturnAction
from .connection_events import ConnectionEvents
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
    :ivar transaction_id: the server's id of the transaction that has taken the locks, where an
        error may end it unnoticed; None before the first lock.
    :ivar begun: a lock was granted here, and the driver has not denied that a transaction is open.
    :ivar events: of a Connection that the program has in hand; None where the session alone has it.
    :ivar listened: listeners must be removed at the end.
    :ivar on_return: the actions of its return to the pool, from the commit on.
    """

    connection: Connection
    known: LockStrategy | None
    # What is not set for each transaction is left to the class.
    opened_for: LockOptions | None = field(default=None, init=False)
    level: str | None = field(default=None, init=False)
    level_before: str | None = field(default=None, init=False)
    transaction_id: object = field(default=None, init=False)
    begun: bool = field(default=False, init=False)
    events: ConnectionEvents | None = field(default=None, init=False)
    listened: bool = field(default=False, init=False)
    on_return: dict[ReturnAction, None] | None = field(default=None, init=False)

    @property
    def strategy(self) -> LockStrategy:
        """The dialect of its database.  :raises LockNotSupported: nothing is known of it."""
        return self.known or strategy_for(self.connection)

    def note_lock(self) -> None:
        """Note that a lock was granted here.

        :raises LockMisuse: it was granted in no transaction, and has ended with its statement.
        """
        strategy = self.strategy
        if strategy.has_transaction_ids and self.transaction_id is None:
            self.transaction_id = strategy.transaction_id(self.connection)
        if not self.begun:  # some drivers send BEGIN with the first statement
            self.begun = strategy.in_transaction(self.connection) is not False
            if strategy.lock_needs_transaction and not self.begun:
                raise LockMisuse(_NO_TRANSACTION)

    def transaction_has_changed(self) -> bool:
        """Return whether the server says that this is not the transaction of the locks any more."""
        if self.connection.closed or self.connection.invalidated:
            return True
        return self.strategy.transaction_id(self.connection) != self.transaction_id

    def row_lock(self, plan: LockPlan) -> LockOptions:
        """Return the lock that a SELECT must carry here, to give what was asked for."""
        if plan.level is None or plan.level == self.level:
            return plan.row_lock
        return self.strategy.row_lock(plan.lock, self.level)
