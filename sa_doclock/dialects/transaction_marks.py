"""The marks of transactions, by which the server distinguishes them; a dialect may omit them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import count
from typing import Final
from weakref import ReferenceType, WeakKeyDictionary, ref

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from .connection import driver_cursor

UNMARKED: Final = object()
"""The answer of ``mark_transaction()`` if the open transaction cannot be marked now."""


class TransactionMarks(ABC):
    """The marks of transactions.

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

    :param is_missing: whether this error says that there is no such savepoint.
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
