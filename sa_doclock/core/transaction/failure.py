"""The condition of a transaction, its failures, and the refusals that follow.

PostgreSQL's COMMIT of an aborted transaction is a silent ROLLBACK, and after InnoDB has rolled a
transaction back, the next statement runs in a new one.  So after a failed lock, everything but a
rollback is refused, on every database.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection
from sqlalchemy.exc import PendingRollbackError
from sqlalchemy.orm import SessionTransaction

from ...errors import REPOSITORY
from ...events import EventfulSession
from ...interruptions import ErrorsIgnored
from ..lock_request import LockCall
from .forked import ParentTransaction
from .transaction_connection import TransactionConnection, TransactionConnections


class Condition(Enum):
    """The condition of a LockTransaction, from the best to the worst; the worst failure decides.

    ::

                                     an error
             OPEN  ------------------------------------------------------.
             ^ |                                                         |
             | |                   .-- HALF_DONE <--.                    |
             | |     ROLLBACK TO   |       |        |                    |
             | |     SAVEPOINT,    +-- ABORTED  <---+   a worse error    |
             | |     or the        |       |        | <------------------'
             '-(---- server's <----+-- REFUSED  <---+   goes down
               |     answer        |       |        |
               |                   '-- IN_DOUBT <---'
               |                           |
               |                         LOST
               v                           |
           COMMITTED  (also from ABORTED   |
               |       and IN_DOUBT)       |
               '-------> INHERITED <-------'   os.fork(), from each of them

    A transaction that is LOST, COMMITTED or INHERITED stays so until the session drops it.
    """

    OPEN = 0
    """Everything is allowed."""
    HALF_DONE = 1
    """An exception left an inner locked() block: COMMIT would save a half, and is refused."""
    ABORTED = 2
    """An error aborted it at the server, which would answer COMMIT by ROLLBACK: COMMIT is refused."""
    REFUSED = 3
    """A lock failed, or a write had none: everything but a rollback is refused."""
    IN_DOUBT = 4
    """An error may have ended it at the server, which is asked before anything else is sent."""
    LOST = 5
    """The server rolled it back by itself: everything but the rollback of the whole is refused."""
    COMMITTED = 6
    """The databases have committed; the session drops it next."""
    INHERITED = 7
    """It belongs to the process that forked this one, in which it is refused."""


def _moves(names: str) -> frozenset[Condition]:
    return frozenset(Condition[name] for name in names.split())


MOVES: Final[Mapping[Condition, frozenset[Condition]]] = MappingProxyType(
    {
        Condition.OPEN: _moves("HALF_DONE ABORTED REFUSED IN_DOUBT LOST COMMITTED INHERITED"),
        Condition.HALF_DONE: _moves("OPEN ABORTED REFUSED IN_DOUBT LOST INHERITED"),
        # The program may have cured it by a ROLLBACK that only the driver sees.
        Condition.ABORTED: _moves("OPEN HALF_DONE REFUSED IN_DOUBT LOST COMMITTED INHERITED"),
        Condition.REFUSED: _moves("OPEN HALF_DONE ABORTED IN_DOUBT LOST INHERITED"),
        # A listener's statement failed within COMMIT.
        Condition.IN_DOUBT: _moves("OPEN HALF_DONE ABORTED REFUSED LOST COMMITTED INHERITED"),
        Condition.LOST: _moves("INHERITED"),
        Condition.COMMITTED: _moves("INHERITED"),
        Condition.INHERITED: _moves(""),
    }
)
"""The conditions to which each may change."""


_REFUSING: Final = "refusing"
_FINAL: Final = frozenset({Condition.COMMITTED, Condition.INHERITED})


class TransactionFailure(NamedTuple):
    """An error, and the condition that it causes.

    :ivar error: None during a lock call, which refuses by itself.
    :ivar savepoint: the session's innermost one at the error; its rollback undoes the failure too.
    :ivar within: the innermost one that the program set on the Connection itself.
    :ivar connection: the one whose server is to be asked.
    """

    condition: Condition
    error: BaseException | None
    savepoint: SessionTransaction | None = None
    within: str | None = None
    connection: TransactionConnection | None = None


_severity: Final = attrgetter("condition.value")


class FailingTransaction:
    """The failures of a LockTransaction, which determine its condition.

    :ivar condition: the current one.
    :ivar failures: the failures that no rollback has undone.
    :ivar parent: the transaction of the process that forked this one.
    :ivar undone_by: the error of a flush that SQLAlchemy has rolled back, until rollback() is
        called.
    :ivar had_nothing_to_roll_back: the ROLLBACK found no transaction: a statement of the program
        ended it.
    """

    condition = Condition.OPEN
    failures: tuple[TransactionFailure, ...] = ()
    parent: ParentTransaction | None = None
    undone_by: BaseException | None = None
    had_nothing_to_roll_back = False

    _session: Callable[[], EventfulSession]
    connections: TransactionConnections

    def note_locks_lost(self) -> None:
        """Forget all locks: the server has released them."""
        raise NotImplementedError

    def move(
        self, to: Condition, failures: tuple[TransactionFailure, ...] = (), **also: Any
    ) -> None:
        """Change the condition, and the state that goes with it.

        In one step, so that no interruption separates the two.

        :param also: other attributes that change with it.
        :raises RuntimeError: the move is not allowed.
        """
        if to is not self.condition and to not in MOVES[self.condition]:
            raise RuntimeError(
                f"a transaction that is {self.condition.name} cannot become {to.name}: this is a bug of "
                f"sa_doclock, not of the program. Roll back, and report it at {REPOSITORY}/issues"
            )
        vars(self).update(condition=to, failures=failures, **also)

    def _note_failures(self, failures: tuple[TransactionFailure, ...]) -> None:
        self.move(max(failures, key=_severity).condition if failures else Condition.OPEN, failures)

    def fail(self, failure: TransactionFailure) -> None:
        """Record a failure; but not after the commit, when a lender continues to use the connection."""
        same = failure._replace(error=None)
        if self.condition not in _FINAL and same not in (
            known._replace(error=None) for known in self.failures
        ):
            self._note_failures((*self.failures, failure))

    # Failures.

    def note_half_done(self, error: BaseException) -> None:
        """Record that an exception left an inner locked() block, whose work must not be saved."""
        self.fail(
            TransactionFailure(Condition.HALF_DONE, error, self._session().get_nested_transaction())
        )

    def refuse_from_now_on(self, cause: BaseException) -> None:
        """Refuse every statement and commit, because of this error."""
        if self.cause() is None:
            savepoint = self._session().get_nested_transaction()
            self.fail(TransactionFailure(Condition.REFUSED, cause, savepoint))
            self.refuse_on_connections()

    def doubt(self, connection: TransactionConnection, error: BaseException) -> None:
        """Record an error that may have ended the transaction, so that the server is asked.

        Not now, because the failed statement is still open, but before anything else is sent.
        """
        self.fail(TransactionFailure(Condition.IN_DOUBT, error, connection=connection))
        self.refuse_on_connections()

    def note_server_rollback(self, error: BaseException | None = None) -> None:
        """Record that the server has rolled back by itself.

        :param error: None in a lock call, which refuses by itself.
        """
        self.fail(TransactionFailure(Condition.LOST, error))
        self.note_locks_lost()

    def note_ended_at_question(self, error: BaseException, call: LockCall | None) -> None:
        """Record that a question of ours found the transaction ended.

        :param call: the current call.
        """
        self.note_server_rollback()
        self.refuse_after(error, call)

    def refuse_after(self, error: BaseException, call: LockCall | None) -> None:
        """Refuse later calls; a call does that itself, after it has restored its settings."""
        if call is None or call.request.as_is:
            self.refuse_from_now_on(error)

    # Their end.

    def note_inner_rollback(self, transaction: SessionTransaction) -> None:
        """Record the rollback of a savepoint, or of a flush: failures inside are undone."""
        # A PendingRollbackError after a flush has no cause.
        undone_by = None if transaction.nested else sys.exc_info()[1]
        self.move(self.condition, self.failures, undone_by=undone_by)
        # A failed flush has undone its savepoint.
        while not transaction.nested and transaction.parent is not None:
            transaction = transaction.parent
        self._undo(lambda failure: _is_in(failure.savepoint, transaction))

    def note_savepoints_undone(self, names: Collection[str]) -> None:
        """Record the rollback of savepoints that the program set on the Connection itself."""
        self._undo(lambda failure: failure.within in names)

    def _undo(self, is_undone: Callable[[TransactionFailure], bool]) -> None:
        if self.failures and self.condition is not Condition.LOST:
            self._note_failures(tuple(known for known in self.failures if not is_undone(known)))

    def verify(self) -> None:
        """Ask the servers whether an error has ended the transaction, if that is in doubt."""
        while self.condition is Condition.IN_DOUBT:
            doubt = next(known for known in self.failures if known.condition is Condition.IN_DOUBT)
            assert doubt.connection is not None
            if doubt.connection.asking:
                return
            if doubt.connection.transaction_has_changed():
                self.note_server_rollback(doubt.error)
            else:
                self._note_failures(tuple(known for known in self.failures if known is not doubt))

    # Refusals.

    def cause(self) -> BaseException | None:
        """Return the first error that causes refusals, or None."""
        refusing = Condition.REFUSED, Condition.LOST
        errors = (known.error for known in self.failures if known.condition in refusing)
        return next(filter(None, errors), None)

    def reason_of_rollback(self) -> BaseException | None:
        """Return the error after which the server has no transaction to roll back, or None."""
        if self.condition is Condition.IN_DOUBT:  # the server's answer to ROLLBACK settles it
            doubt = next(known for known in self.failures if known.condition is Condition.IN_DOUBT)
            self.note_server_rollback(doubt.error)
        return self.cause() if self.condition is Condition.LOST else None

    def refuse(self) -> None:
        """Refuse a call of the session.

        :raises PendingRollbackError: a lock failed, and nothing was rolled back since.
        :raises LockMisuse: the transaction belongs to another process.
        """
        if self.parent is not None:
            self.parent.refuse()
        self.verify()
        cause = self.cause()
        if cause is None:
            return
        if self.condition is Condition.LOST:
            raise PendingRollbackError(
                "An error has ended this transaction at the server, and its locks and writes are "
                f"gone. Call rollback(). The error was: {cause}"
            ) from cause
        raise PendingRollbackError(
            "This transaction cannot continue: it failed to take a lock, or wrote without one. "
            f"Call rollback(). The failure was: {cause}"
        ) from cause

    def refuse_failed_commit(self, *, whole: bool) -> None:
        """Refuse the commit of the whole transaction, or of a savepoint.

        :raises PendingRollbackError: COMMIT would fail, save half, or silently roll back.
        """
        self.refuse()
        if self.condition is Condition.LOST:
            raise PendingRollbackError(
                "The server has rolled this transaction back by itself, and its locks and writes are "
                "gone: call rollback(), and run it again"
            )
        for failure in self.failures if whole else ():
            if failure.condition is Condition.HALF_DONE:
                raise PendingRollbackError(
                    "An exception has left an inner locked() block, and a commit would save part "
                    "of its work. Call rollback(). To undo such a block alone, open a savepoint "
                    f"(begin_nested()) around it. The exception was: {failure.error!r}"
                ) from failure.error
            if failure.condition is Condition.ABORTED and self.connections.aborted():
                raise PendingRollbackError(
                    "An error has aborted this transaction, and the server would answer COMMIT "
                    f"with a ROLLBACK. Call rollback(). The error was: {failure.error}"
                ) from failure.error

    def refuse_on_connections(self) -> None:
        """Refuse on each current connection, which the program may use directly."""
        if self.cause() is None and self.condition is not Condition.IN_DOUBT:
            return
        for joined in self.connections.by_engine.values():
            if not joined.is_listened(_REFUSING):
                joined.listen("before_cursor_execute", self._refuse_statement, _REFUSING)
                joined.listen("commit", self._refuse_connection_commit, _REFUSING)
                joined.listen("rollback", self.connections.note_lender_rollback, _REFUSING)
                joined.listen("rollback_twophase", self.connections.note_lender_rollback, _REFUSING)

    def _refuse_statement(
        self, connection: Connection, cursor: Any, statement: str, *_: Any
    ) -> None:
        if any(joined.asking for joined in self.connections.by_engine.values()):
            return
        if statement.startswith("ROLLBACK"):  # to a savepoint
            self.verify()
            cause = self.cause()
            if self.condition is Condition.LOST and cause is not None:
                raise cause  # the server has no savepoint now: raise the reason
            return
        if not self.connections.is_rolled_back_by_lender(connection):
            self.refuse()

    def _refuse_connection_commit(self, connection: Connection) -> None:
        if self.connections.is_rolled_back_by_lender(connection):
            return
        try:
            self.refuse()
        except PendingRollbackError:
            # SQLAlchemy believes that a failed COMMIT ended the transaction, and sends no ROLLBACK,
            # neither for rollback() nor when the connection returns to its pool.
            with ErrorsIgnored(connection):
                connection.connection.rollback()
            self.connections.note_lender_rollback(connection)
            self.note_locks_lost()
            raise


def _is_in(savepoint: SessionTransaction | None, transaction: SessionTransaction) -> bool:
    """Return whether the savepoint is this transaction, or is nested in it; None: no savepoint."""
    while savepoint is not None and savepoint is not transaction:
        savepoint = savepoint.parent
    return savepoint is not None
