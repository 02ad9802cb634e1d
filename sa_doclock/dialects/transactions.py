"""A transaction, as its driver and its server know it: its state, its steps, its mark and its outcome."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import count
from typing import Any, ClassVar, Final
from weakref import ReferenceType, WeakKeyDictionary, ref

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from ..options import LockOptions
from .connection import driver_cursor


class TransactionStatus:
    """The state of a transaction, as the driver knows it.  By default nothing is known.

    It costs nothing, and may miss that one transaction has ended and another begun.  The ledger is
    compared with it before a lock, a flush and a commit, after each error, and after each statement
    on a Connection that the program may use directly.

    False: an open transaction has ended, and its locks are gone; then the session refuses to write.
    None: unknown.  Called only after a lock or a savepoint was sent, so that there must be a
    transaction.
    """

    def in_transaction(self, connection: Connection, cursor: Any = None) -> bool | None:
        """Return whether the driver knows a transaction to be open; sends nothing.

        The answer must be right at any time.  A lock that was granted while this is False has ended
        already.

        :param cursor: of the statement that has just succeeded, if a driver keeps the status of
            some answers only; None: the last answer may be any.
        """
        return None

    def has_open_transaction(self, connection: Connection) -> bool | None:
        """Return whether a transaction is open, which can execute a question to the server; None: unknown.

        A question uses ``connection.connection.cursor()``, so that its error is not the session's.
        Called also after a statement of the program has failed: an error counts as None.
        """
        return self.in_transaction(connection)

    def is_aborted(self, connection: Connection) -> bool | None:
        """Return whether an error has aborted the transaction; None: the driver cannot tell.

        Called if ``ErrorCodes.every_error`` is ABORTS.
        """
        return None

    def is_idle(self, dbapi_connection: Any) -> bool:
        """Return whether the server's answer to COMMIT or ROLLBACK says that no transaction is open.

        False: it does not, or the driver cannot tell.  Override it if some driver sends a ROLLBACK
        even without an open transaction.
        """
        return False


class TransactionLifecycle:
    """The steps that SQLAlchemy and the driver omit.  By default they omit none."""

    kept_by_prepare: ClassVar[frozenset[LockOptions]] = frozenset()
    """The locks that a prepared transaction keeps until its second phase, whatever it has written."""

    def begun(self, connection: Connection, *, lent: bool) -> None:
        """Note the state of a connection whose transaction begins now, before the program's listeners.

        If the server stores the time of the begin, make it begin now.

        :param lent: the program has begun it, perhaps earlier, and must find it unchanged.
        """

    def before_savepoint(self, connection: Connection) -> None:
        """Send the statement that a SAVEPOINT needs before it."""

    def commit_failed(self, connection: Connection, cursor: Any = None) -> None:
        """End a transaction that a failed COMMIT has left open, which SQLAlchemy does not.

        Called after an interruption too, before SQLAlchemy closes the connection.

        :param cursor: of the interrupted statement.
        """

    def before_rollback(self, connection: Connection) -> None:
        """Ensure a transaction for the ROLLBACK that follows, if that is an error without one.

        Called if an error, or a foreign statement, may have ended the transaction.
        """

    def has_unread_answer(self, connection: Connection, error: BaseException) -> bool:
        """Return whether the driver's error has left the answer to its statement unread.

        Then the connection is lost: the next reader may get that answer for another one.  False: it
        has not, or the driver cannot tell.
        """
        return False

    def descriptor(self, driver_connection: Any) -> int | None:
        """Return the file descriptor of the driver's connection to its server.

        A forked process points it at the null device.  None: there is none, or the driver hides it;
        then the process must not close its copy of the connection.
        """
        fileno: Callable[[], int] | None = getattr(driver_connection, "fileno", None)
        return None if fileno is None else fileno()

    def closed_to_forks(self, connection: Connection) -> Callable[[Engine], str | None] | None:
        """Return a function that says why a fork must not connect by this engine; None: it may.

        Called in the fork of a process in which this connection is in a transaction.  None: the
        fork may connect to this database like any other process.
        """
        return None


class Outcome(Enum):
    """The end of a transaction, as the server knows it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    IN_PROGRESS = "in progress"
    UNKNOWN = "unknown"


class CommitOutcomes(ABC):
    """The outcome of a COMMIT whose answer was lost, asked of the server; a dialect may omit it."""

    question: ClassVar[str]
    """A SELECT without parameters that returns one row, by which ``outcome()`` identifies the
    transaction.  The session sends it right before COMMIT; its first column is None if nothing was
    written.
    """

    @abstractmethod
    def outcome(self, connection: Connection, transaction: Sequence[Any]) -> Outcome:
        """Return the end of the transaction.

        :param connection: another connection, perhaps to another server than the transaction's.
        :param transaction: the row that ``question`` returned.
        """


UNMARKED: Final = object()
"""The answer of ``mark_transaction()`` if the open transaction cannot be marked now."""


class TransactionMarks(ABC):
    """The marks of transactions, by which the server distinguishes them; a dialect may omit them.

    :cvar schema_setter: the function by which a SELECT can change the current schema; empty: none.
    """

    schema_setter = ""

    @abstractmethod
    def mark_transaction(self, connection: Connection) -> object:
        """Return a mark of the open transaction, by which ``has_mark()`` recognizes it.

        Called before a foreign statement while locks are held.  UNMARKED: this transaction cannot
        be marked now; if the statement succeeds, the locks count as lost.
        """

    def current_schema(self, connection: Connection) -> str | None:
        """Return the schemas, or the database, of names without one; None: it cannot change."""
        return None

    @abstractmethod
    def has_mark(self, connection: Connection, mark: object) -> bool:
        """Return whether the open transaction is the one with this mark.

        Called before the next flush, lock or commit.  True also if the transaction can do nothing
        more: the next statement says why.
        """


# Threads: before Python 3.14 without a GIL, two threads may get the same number; a name must be
# unique only on its connection, which one thread uses at a time.
_numbers: Final = count(1)
# Several sessions may use one Connection.  Releasing one of two savepoints would release the other
# too, so they share one.
# Threads: one thread at a time uses a Connection, and each use is one atomic operation of a dict.
_marks: WeakKeyDictionary[Connection, ReferenceType[SavepointMark]]
_marks = WeakKeyDictionary()


class SavepointMark:
    """A mark, and whether it still existed when it was used up."""

    def __init__(self) -> None:
        self.name = f"sa_doclock_mark_{next(_numbers)}"
        self.was_there: bool | None = None


class SavepointMarks(TransactionMarks):
    """Marks that end with their transaction, and by a rollback to an older savepoint: savepoints,
    unless a dialect has a better one.

    ``has_mark()`` uses it up; while there is a savepoint, the program can neither set nor end
    another one.

    :param is_missing: returns whether an error reports a missing savepoint.
    """

    def __init__(self, is_missing: Callable[[DBAPIError], bool]) -> None:
        self._is_missing = is_missing

    def mark_transaction(self, connection: Connection) -> object:
        found = _marks.get(connection)
        shared = None if found is None else found()
        if shared is not None and shared.was_there is None:
            return shared
        mark = SavepointMark()
        _marks[connection] = ref(
            mark
        )  # before another session takes its statement for a foreign one
        return mark if self.set_mark(connection, mark.name) else UNMARKED

    def has_mark(self, connection: Connection, mark: object) -> bool:
        assert isinstance(mark, SavepointMark)
        if mark.was_there is None:
            mark.was_there = self.take_mark(connection, mark.name)
        return mark.was_there

    def set_mark(self, connection: Connection, name: str) -> bool:
        """Set a mark of this name; return False if the transaction cannot be marked now."""
        try:
            _send(connection, f"SAVEPOINT {name}")
        except DBAPIError:
            return False
        return True

    def take_mark(self, connection: Connection, name: str) -> bool:
        """Remove the mark of this name; return whether it was there."""
        try:
            _send(connection, f"RELEASE SAVEPOINT {name}")
        except DBAPIError as error:
            if not self._is_missing(error):
                raise
            return False
        return True


def is_spent(mark: object) -> bool:
    """Return whether a mark existed, and was released: by another session on the Connection.

    It says nothing about later statements.
    """
    return isinstance(mark, SavepointMark) and mark.was_there is True


def _send(connection: Connection, statement: str) -> None:
    with driver_cursor(connection, statement) as cursor:
        cursor.execute(statement)
