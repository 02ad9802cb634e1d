"""A transaction that has failed refuses everything until it is rolled back.

PostgreSQL's COMMIT of an aborted transaction is a silent ROLLBACK, and after InnoDB has
rolled a transaction back the next statement runs in a new one.  So whatever the database,
everything but a rollback is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol
from weakref import ReferenceType

from sqlalchemy import Connection, event
from sqlalchemy.exc import PendingRollbackError
from sqlalchemy.orm import Session, SessionTransaction

from ...interruptions import ErrorsIgnored
from ..lock_request import LockCall
from .connection import TransactionConnection, TransactionConnections
from .first_use import FirstUse
from .forked import ParentTransaction
from .partial_work import PartialWork, is_in


class LockHolder(Protocol):
    """Holds the locks of the transaction."""

    def note_locks_lost(self) -> None:
        """Forget all locks: the server has given them up."""


class TransactionFailure:
    """The failure of one session's transaction, and what is refused because of it.

    :ivar occurred: the session has had a failure, now or before; most have none.
    :ivar cause: the failed lock, after which nothing was rolled back yet.
    :ivar undone_by: the error of a flush that SQLAlchemy has undone, until rollback() is called.
    :ivar rolled_back_by_server: the server has rolled back by itself.
    :ivar had_nothing_to_roll_back: the ROLLBACK found no transaction, which a statement of the program ended.
    :ivar asking: a server is asked now whether an error has ended the transaction.
    :ivar parent: the transaction is another process's, of which this one is a fork.
    """

    # What a session whose locks are all granted never sets is left to the class.
    occurred = rolled_back_by_server = asking = had_nothing_to_roll_back = False
    cause: BaseException | None = None
    undone_by: BaseException | None = None
    parent: ParentTransaction | None = None
    _savepoint: SessionTransaction | None = None
    _refused: RefusedConnections | None = None

    def __init__(
        self,
        session: Callable[[], Session],
        connections: TransactionConnections,
        holder: ReferenceType[LockHolder],
    ) -> None:
        self._session = session
        self._connections = connections
        self._holder = holder

    @FirstUse
    def partial_work(self) -> PartialWork:
        """The work that was undone in part; who asks for it notes or ends a failure."""
        self.occurred = True
        return PartialWork(self._session)

    @FirstUse
    def _doubts(self) -> dict[TransactionConnection, BaseException]:
        """The errors that may have ended the transaction at the server, which was not asked yet."""
        return {}

    def note_locks_lost(self) -> None:
        """Have all locks forgotten: the server has given them up."""
        holder = self._holder()
        if holder is not None:
            holder.note_locks_lost()

    def refuse(self) -> None:
        """Refuse what the session is asked to do.

        :raises PendingRollbackError: a lock failed, and nothing was rolled back since.
        :raises LockMisuse: the transaction is another process's.
        """
        if not self.occurred:
            return
        if self.parent is not None:
            self.parent.refuse()
        self.verify()
        if self.rolled_back_by_server and self.cause is not None:
            raise PendingRollbackError(
                "An error has ended this transaction at the server, and its locks and writes are "
                f"gone. It does nothing more until rollback(). The error was: {self.cause}"
            ) from self.cause
        if self.cause is not None:
            raise PendingRollbackError(
                "This transaction has failed to take a lock, or has written without one, and does "
                f"nothing more until rollback(). The failure was: {self.cause}"
            ) from self.cause

    def leave_to_parent(self, parent: ParentTransaction) -> None:
        """Refuse everything but rollback() and close(): this process is a fork."""
        self.end()
        self.occurred, self.parent = True, parent
        parent.refuse_all(self._session())

    def refuse_commit(self, *, whole: bool) -> None:
        """Refuse the commit of the whole transaction, or of a savepoint.

        :raises PendingRollbackError: the COMMIT would fail, or be a ROLLBACK in silence.
        """
        self.refuse()
        if whole:
            self.partial_work.refuse_commit(self._connections)

    def refuse_from_now_on(self, cause: BaseException) -> None:
        """Refuse every statement and commit, because of this error."""
        self.occurred = True
        if self.cause is None:
            self.cause = cause
            self._savepoint = self._session().get_nested_transaction()
            self._listen()

    def note_joined(self) -> None:
        """Refuse on a connection too that takes part in the transaction only now."""
        if self.cause is not None or self._doubts:
            self._listen()

    def _listen(self) -> None:
        if self._refused is None:
            self._refused = RefusedConnections(self, self._connections)
        self._refused.listen()

    def doubt(self, connection: TransactionConnection, error: BaseException) -> None:
        """Note an error that may have ended the transaction, so that the server is asked.

        Not now, for the statement that has failed is still open, but before anything else is sent.
        """
        self.occurred = True
        self._doubts.setdefault(connection, error)
        self._listen()

    def verify(self) -> None:
        """Ask the servers whether an error has ended the transaction, where that is in doubt."""
        while self.occurred and self._doubts and not self.asking:
            connection, error = self._doubts.popitem()
            self.asking = True
            try:
                changed = connection.transaction_has_changed()
            finally:
                self.asking = False
            if changed:
                self.end_by_server(error)

    def end_by_server(self, error: BaseException) -> None:
        """Refuse everything until rollback(): the server has rolled back because of this error."""
        self._doubts.clear()
        self.note_server_rollback()
        self.cause, self._savepoint = self.cause or error, None

    def is_rolled_back(self) -> bool:
        """Return whether an error explains that the server has no transaction to roll back."""
        for error in [*self._doubts.values()][:1]:
            self.end_by_server(error)
        return self.rolled_back_by_server

    def note_server_rollback(self) -> None:
        """Note that the server has rolled back by itself."""
        self.occurred = True
        self.rolled_back_by_server = True
        self.note_locks_lost()

    def note_ended_at_question(self, error: BaseException, call: LockCall | None) -> None:
        """Note the end of the transaction, which a question of ours has met.

        :param call: the call under way.
        """
        self.note_server_rollback()
        self.refuse_after(error, call)

    def refuse_after(self, error: BaseException, call: LockCall | None) -> None:
        """Refuse what follows the error; a call does that itself, when it has put its settings back."""
        if call is None or call.request.as_is:
            self.refuse_from_now_on(error)

    def note_rollback(self, transaction: SessionTransaction) -> None:
        """Note a rollback of the transaction or of a savepoint: what failed inside is over."""
        if transaction.parent is not None:
            self._note_inner_rollback(transaction)
        elif self.occurred:
            self.undone_by = None
            self.partial_work.clear()
            self.end()

    def _note_inner_rollback(self, transaction: SessionTransaction) -> None:
        """Note the rollback of a savepoint, or of a flush."""
        self.occurred = True
        if transaction.nested:
            self.undone_by = None
        else:
            self.undone_by = sys.exc_info()[1]  # its PendingRollbackError has no cause
        # A flush that fails has undone the savepoint that it was in.
        while not transaction.nested and transaction.parent is not None:
            transaction = transaction.parent
        self.partial_work.note_rollback(transaction)
        if is_in(self._savepoint, transaction) and not self.rolled_back_by_server:
            self.end()

    def stop_listening(self) -> None:
        """Listen no more to the connections, some of which outlive the transaction."""
        if self._refused is not None:
            self._refused.stop_listening()
            self._refused = None

    def end(self) -> None:
        """Refuse nothing any more."""
        self.stop_listening()
        self._doubts.clear()
        self.cause = self._savepoint = None
        self.rolled_back_by_server = False
        if self.parent is not None:
            self.parent.end(self._session())
            self.parent = None
        if not self._session().in_transaction():
            self.partial_work.clear()


class RefusedConnections:
    """The connections of a failed transaction, and the events by which all is refused on them."""

    def __init__(self, failure: TransactionFailure, connections: TransactionConnections) -> None:
        self._failure, self._connections = failure, connections
        self._refused: tuple[Connection, ...] = ()
        self._rolled_back_by_lender: tuple[Connection, ...] = ()

    def listen(self) -> None:
        """Refuse on each connection of the transaction that there is now."""
        added = [one for one in self._connections.all() if one not in self._refused]
        self._refused = (*self._refused, *added)
        for connection in added:
            event.listen(connection, "before_cursor_execute", self._refuse_statement)
            event.listen(connection, "commit", self._refuse_commit)
            event.listen(connection, "rollback", self._note_rollback)

    def stop_listening(self) -> None:
        """Refuse nothing any more."""
        for connection in self._refused:
            event.remove(connection, "before_cursor_execute", self._refuse_statement)
            event.remove(connection, "commit", self._refuse_commit)
            event.remove(connection, "rollback", self._note_rollback)

    def _note_rollback(self, connection: Connection) -> None:
        if self._connections.is_lent(connection):
            self._rolled_back_by_lender = (*self._rolled_back_by_lender, connection)

    def _refuse_statement(
        self, connection: Connection, cursor: Any, statement: str, *_: Any
    ) -> None:
        failure = self._failure
        if failure.asking:
            return
        if statement.startswith("ROLLBACK"):  # to a savepoint
            failure.verify()
            if failure.rolled_back_by_server and failure.cause is not None:
                raise failure.cause  # the server has no savepoint any more: tell why
            return
        if connection not in self._rolled_back_by_lender:
            failure.refuse()

    def _refuse_commit(self, connection: Connection) -> None:
        if connection in self._rolled_back_by_lender:
            return
        try:
            self._failure.refuse()
        except PendingRollbackError:
            # SQLAlchemy takes a transaction whose COMMIT has failed for ended.  It would send no
            # ROLLBACK, neither for rollback() nor when the connection goes back to its pool.
            with ErrorsIgnored(connection):
                connection.connection.rollback()
            self._note_rollback(connection)
            self._failure.note_locks_lost()
            raise
