"""What a transaction refuses once it has failed, until it is rolled back.

PostgreSQL's COMMIT of an aborted transaction is a silent ROLLBACK, and after InnoDB has
thrown a transaction away the next statement runs in a new one.  So whatever the
database, everything but a rollback is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.exc import PendingRollbackError
from sqlalchemy.orm import Session, SessionTransaction

from ..monitoring import LockInstrumentation
from ..session_ref import weakly
from .connections import TransactionConnections
from .ledger import Ledger


class FailedTransaction:
    """What has failed in the transaction of one session, and what follows."""

    # Of most sessions no lock ever fails: what they do not set they need not be given.
    undone_by: BaseException | None = None
    """The error of a flush that SQLAlchemy has rolled back, while it waits for rollback()."""
    gone = False
    """Whether the server has rolled back by itself."""
    cause: BaseException | None = None
    """The failed lock, after which nothing was rolled back yet."""
    _savepoint: SessionTransaction | None = None
    _refusing: Sequence[Connection] = ()
    _rolled_back: Sequence[Connection] = ()  # of those, by who has lent them
    _abort: BaseException | None = None  # the error that only a rollback can follow
    _abort_savepoint: SessionTransaction | None = None

    def __init__(
        self,
        session: Session,
        participants: TransactionConnections,
        ledger: Ledger,
        telling: LockInstrumentation,
    ) -> None:
        self._session = weakly(session)
        self._participants = participants
        self._ledger = ledger
        self._telling = telling

    def lose(self) -> None:
        """The server has given up all locks of the transaction, though it has not ended here."""
        self._telling.report_released(self._ledger.clear(), "lost")

    def lose_transaction(self) -> None:
        """The server has rolled back by itself."""
        self.gone = True
        self.lose()

    def roll_back(self) -> None:
        """Roll back because of an error, which is the one to tell whatever the rollback meets."""
        with suppress(Exception):
            self._session().rollback()

    @property
    def told(self) -> BaseException | None:
        """Why the server has rolled back by itself; that it did is then no news of a ROLLBACK."""
        return self.cause if self.gone else None

    def refuse(self) -> None:
        """:raises PendingRollbackError: a lock failed, and nothing was rolled back since."""
        if self.cause is not None:
            raise PendingRollbackError(
                "This transaction has failed to take a lock, and does nothing more until "
                f"rollback(). The failure was: {self.cause}"
            ) from self.cause

    def refuse_commit(self) -> None:
        """:raises PendingRollbackError: the COMMIT would fail, or be a ROLLBACK in silence."""
        self.refuse()
        if self._abort is None or self._session().in_nested_transaction():
            return
        if self._participants.aborted():
            raise PendingRollbackError(
                "An error has aborted this transaction, and the server would answer its COMMIT by "
                f"a ROLLBACK; call rollback(). The error was: {self._abort}"
            ) from self._abort

    def refuse_from_now_on(self, cause: BaseException) -> None:
        """Do nothing more: a lock has failed, by this error."""
        if self.cause is None:
            self.cause = cause
            self._savepoint = self._session().get_nested_transaction()
            self._refusing = self._participants.connections()
            for connection in self._refusing:
                event.listen(connection, "before_cursor_execute", self._refuse_statement)
                event.listen(connection, "commit", self._refuse_commit)
                event.listen(connection, "rollback", self._note_rollback)

    def note_abort(self, error: BaseException) -> None:
        """An error has aborted the transaction at the server, or what is in its savepoint."""
        if self._abort is None:
            self._abort = error
            self._abort_savepoint = self._session().get_nested_transaction()
        if self._abort_savepoint is None:
            self.lose()

    def rolled_back(self, transaction: SessionTransaction) -> None:
        """A transaction or savepoint was rolled back: what failed inside of it is over."""
        outermost = transaction.parent is None
        if outermost or transaction.nested:
            self.undone_by = None
        else:
            self.undone_by = sys.exc_info()[1]  # its PendingRollbackError has no cause
        if outermost or _is_in(self._abort_savepoint, transaction):
            self._abort = self._abort_savepoint = None
        if outermost or (_is_in(self._savepoint, transaction) and not self.gone):
            self.over()

    def over(self) -> None:
        """Nothing has failed, or it was rolled back."""
        if self.cause is None and self._abort is None and not self.gone:
            return
        for connection in self._refusing:
            event.remove(connection, "before_cursor_execute", self._refuse_statement)
            event.remove(connection, "commit", self._refuse_commit)
            event.remove(connection, "rollback", self._note_rollback)
        self._refusing = self._rolled_back = ()
        self.cause = self._savepoint = None
        self.gone = False
        if not self._session().in_transaction():
            self._abort = self._abort_savepoint = None

    def _note_rollback(self, connection: Connection) -> None:
        if self._participants.is_lent(connection):
            self._rolled_back = (*self._rolled_back, connection)

    def _refuse_statement(
        self, connection: Connection, cursor: Any, statement: str, *_: Any
    ) -> None:
        if statement.startswith("ROLLBACK"):  # to a savepoint
            if self.gone and self.cause is not None:
                raise self.cause  # the server has no savepoint any more: tell why
            return
        if connection not in self._rolled_back:
            self.refuse()

    def _refuse_commit(self, connection: Connection) -> None:
        if connection in self._rolled_back:
            return
        try:
            self.refuse()
        except PendingRollbackError:
            # SQLAlchemy takes a transaction whose COMMIT has failed for ended.  It would send no
            # ROLLBACK, neither for rollback() nor when the connection goes back to its pool.
            with suppress(Exception):
                connection.connection.rollback()
            self._note_rollback(connection)
            self.lose()
            raise


def _is_in(savepoint: SessionTransaction | None, transaction: SessionTransaction) -> bool:
    while savepoint is not None and savepoint is not transaction:
        savepoint = savepoint.parent
    return savepoint is not None
