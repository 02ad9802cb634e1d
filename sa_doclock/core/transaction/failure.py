"""A transaction that has failed refuses everything until it is rolled back.

PostgreSQL's COMMIT of an aborted transaction is a silent ROLLBACK, and after InnoDB has
rolled a transaction back the next statement runs in a new one.  So whatever the database,
everything but a rollback is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any
from weakref import ReferenceType

from sqlalchemy import Connection, event
from sqlalchemy.exc import PendingRollbackError
from sqlalchemy.orm import Session, SessionTransaction

from ..lock_request import LockCall
from .connection import TransactionConnection
from .connection_events import TransactionFollower
from .connections import TransactionConnections
from .first_use import FirstUse


class TransactionFailure:
    """The failure of one session's transaction, and what is refused because of it.

    :param follower: forgets the locks that the server has given up.
    """

    # What a session whose locks are all granted never sets is left to the class.
    occurred = False
    """True from the first failure of the session on; most have none."""

    cause: BaseException | None = None
    """The failed lock, after which nothing was rolled back yet."""

    undone_by: BaseException | None = None
    """The error of a flush that SQLAlchemy has rolled back, while it waits for rollback()."""

    rolled_back_by_server = False
    """True if the server has rolled back by itself."""

    _savepoint: SessionTransaction | None = None
    _refusing: tuple[Connection, ...] = ()
    _rolled_back_by_lender: tuple[Connection, ...] = ()
    _abort: BaseException | None = None  # the error that only a rollback can follow
    _abort_savepoint: SessionTransaction | None = None
    _abort_within: str | None = None  # a savepoint that the program has set itself
    _asking = False

    def __init__(
        self,
        session: Callable[[], Session],
        connections: TransactionConnections,
        follower: ReferenceType[TransactionFollower],
    ) -> None:
        self._session = session
        self._connections = connections
        self._follower = follower

    @FirstUse
    def _half_done(self) -> list[tuple[BaseException, SessionTransaction | None]]:
        """Exceptions that have left an inner locked() block, each with the savepoint that was open."""
        return []

    @FirstUse
    def _doubts(self) -> dict[TransactionConnection, BaseException]:
        """The errors that may have ended the transaction at the server, which was not asked yet."""
        return {}

    def _note_locks_lost(self) -> None:
        follower = self._follower()
        if follower is not None:
            follower.note_locks_lost()

    @property
    def expected_error(self) -> BaseException | None:
        """The error that a ROLLBACK may repeat: the server's reason to have rolled back itself."""
        return self.cause if self.rolled_back_by_server else None

    def refuse(self) -> None:
        """:raises PendingRollbackError: a lock failed, and nothing was rolled back since."""
        if not self.occurred:
            return
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

    def refuse_commit(self) -> None:
        """:raises PendingRollbackError: the COMMIT would fail, or be a ROLLBACK in silence."""
        self.refuse()
        if self._session().in_nested_transaction():
            return
        if self._half_done:
            error, _ = self._half_done[0]
            raise PendingRollbackError(
                "An exception has left an inner locked() block, and a part of its work would be "
                "saved: call rollback(), or open a savepoint (begin_nested()) around such a block, "
                f"whose rollback undoes it. The exception was: {error!r}"
            ) from error
        if self._abort is not None and self._connections.aborted():
            raise PendingRollbackError(
                "An error has aborted this transaction, and the server would answer its COMMIT by "
                f"a ROLLBACK; call rollback(). The error was: {self._abort}"
            ) from self._abort

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
        added = [one for one in self._connections.all() if one not in self._refusing]
        self._refusing = (*self._refusing, *added)
        for connection in added:
            event.listen(connection, "before_cursor_execute", self._refuse_statement)
            event.listen(connection, "commit", self._refuse_commit)
            event.listen(connection, "rollback", self._note_rollback)

    def doubt(self, connection: TransactionConnection, error: BaseException) -> None:
        """Note an error that may have ended the transaction, so that the server is asked.

        Not now, for the statement that has failed is still open, but before anything else is sent.
        """
        self.occurred = True
        self._doubts.setdefault(connection, error)
        self._listen()

    def verify(self) -> None:
        """Ask the servers whether an error has ended the transaction, where that is in doubt."""
        while self.occurred and self._doubts and not self._asking:
            connection, error = self._doubts.popitem()
            self._asking = True
            try:
                changed = connection.transaction_has_changed()
            finally:
                self._asking = False
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
        self._note_locks_lost()

    def note_ended_at_question(self, error: BaseException, call: LockCall | None) -> None:
        """Note the end of the transaction, which a question of ours has met.

        :param call: the call under way.  One for a lock of ours refuses itself what follows, after it
            has put its settings back.
        """
        self.note_server_rollback()
        if call is None or call.request.adopted:
            self.refuse_from_now_on(error)

    def note_abort(self, error: BaseException, *, within: str | None = None) -> None:
        """Note that an error has aborted the transaction at the server, or its savepoint.

        :param within: the innermost savepoint that the program has set on the Connection itself.
        """
        self.occurred = True
        if self._abort is None:
            self._abort, self._abort_within = error, within
            self._abort_savepoint = self._session().get_nested_transaction()
        if self._abort_savepoint is None and within is None:
            self._note_locks_lost()

    def note_savepoints_undone(self, names: Collection[str]) -> None:
        """Note the rollback of savepoints that the program has set on the Connection itself."""
        if self._abort_within in names:
            self._forget_abort()

    def note_half_done(self, error: BaseException) -> None:
        """Note that an exception has left an inner block, whose work is not to be saved."""
        self.occurred = True
        self._half_done.append((error, self._session().get_nested_transaction()))

    def note_rollback(self, transaction: SessionTransaction) -> None:
        """Note a rollback of the transaction or of a savepoint: what failed inside is over."""
        if transaction.parent is not None:
            self._note_inner_rollback(transaction)
        elif self.occurred:
            self._note_whole_rollback()

    def _note_whole_rollback(self) -> None:
        self.undone_by = None
        self._half_done.clear()
        self._forget_abort()
        self.end()

    def _note_inner_rollback(self, transaction: SessionTransaction) -> None:
        """Note the rollback of a savepoint, or of a flush."""
        self.occurred = True
        if transaction.nested:
            self.undone_by = None
            self._half_done[:] = [one for one in self._half_done if not _is_in(one[1], transaction)]
        else:
            self.undone_by = sys.exc_info()[1]  # its PendingRollbackError has no cause
        if _is_in(self._abort_savepoint, transaction):
            self._forget_abort()
        if _is_in(self._savepoint, transaction) and not self.rolled_back_by_server:
            self.end()

    def _forget_abort(self) -> None:
        self._abort = self._abort_savepoint = self._abort_within = None

    def end(self) -> None:
        """Refuse nothing any more."""
        for connection in self._refusing:
            event.remove(connection, "before_cursor_execute", self._refuse_statement)
            event.remove(connection, "commit", self._refuse_commit)
            event.remove(connection, "rollback", self._note_rollback)
        self._refusing = self._rolled_back_by_lender = ()
        self._doubts.clear()
        self.cause = self._savepoint = None
        self.rolled_back_by_server = False
        if not self._session().in_transaction():
            self._forget_abort()
            self._half_done.clear()

    def _note_rollback(self, connection: Connection) -> None:
        if self._connections.is_lent(connection):
            self._rolled_back_by_lender = (*self._rolled_back_by_lender, connection)

    def _refuse_statement(
        self, connection: Connection, cursor: Any, statement: str, *_: Any
    ) -> None:
        if self._asking:
            return
        if statement.startswith("ROLLBACK"):  # to a savepoint
            self.verify()
            if self.rolled_back_by_server and self.cause is not None:
                raise self.cause  # the server has no savepoint any more: tell why
            return
        if connection not in self._rolled_back_by_lender:
            self.refuse()

    def _refuse_commit(self, connection: Connection) -> None:
        if connection in self._rolled_back_by_lender:
            return
        try:
            self.refuse()
        except PendingRollbackError:
            # SQLAlchemy takes a transaction whose COMMIT has failed for ended.  It would send no
            # ROLLBACK, neither for rollback() nor when the connection goes back to its pool.
            with suppress(Exception):
                connection.connection.rollback()
            self._note_rollback(connection)
            self._note_locks_lost()
            raise


def _is_in(savepoint: SessionTransaction | None, transaction: SessionTransaction) -> bool:
    while savepoint is not None and savepoint is not transaction:
        savepoint = savepoint.parent
    return savepoint is not None
