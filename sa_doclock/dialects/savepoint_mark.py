"""A savepoint as the mark of a transaction: it ends with its transaction, and needs no privilege."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import count
from typing import Any, Final
from weakref import ReferenceType, WeakKeyDictionary, ref

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from .connection import wrapped_error
from .transaction_marks import UNMARKED, TransactionMarks

# Threads: two threads may get the same number, without a GIL and before Python 3.14; a name has
# to differ from others of its own connection alone, which one thread uses at a time.
_numbers: Final = count(1)
# Several sessions may have been given one Connection.  To release one of two savepoints would
# release the other too, so they share one.
# Threads: a Connection is used by one thread at a time, and each use is one operation of a dict,
# which is atomic.
_marks: WeakKeyDictionary[Connection, ReferenceType[SavepointMark]]
_marks = WeakKeyDictionary()


class SavepointMark:
    """A savepoint, and whether it was still there when it was released."""

    def __init__(self) -> None:
        self.name = f"sa_doclock_mark_{next(_numbers)}"
        self.was_there: bool | None = None


class SavepointMarks(TransactionMarks):
    """Savepoints as marks.

    :param is_missing: whether this error says that there is no such savepoint.
    """

    is_savepoint = True

    def __init__(self, is_missing: Callable[[DBAPIError], bool]) -> None:
        self._is_missing = is_missing

    def mark_transaction(self, connection: Connection) -> object:
        return set_savepoint_mark(connection)

    def has_mark(self, connection: Connection, mark: object) -> bool:
        return release_savepoint_mark(connection, mark, self._is_missing)


def set_savepoint_mark(connection: Connection) -> object:
    """Return the mark of the open transaction, set if there is none; UNMARKED: that has failed."""
    found = _marks.get(connection)
    shared = None if found is None else found()
    if shared is not None and shared.was_there is None:
        return shared
    mark = SavepointMark()
    try:
        _send(connection, f"SAVEPOINT {mark.name}")
    except DBAPIError:
        return UNMARKED
    _marks[connection] = ref(mark)
    return mark


def is_spent(mark: object) -> bool:
    """Return whether a mark was there, and was released: by another session on the Connection.

    It says nothing about what comes after.
    """
    return isinstance(mark, SavepointMark) and mark.was_there is True


def release_savepoint_mark(
    connection: Connection, mark: object, is_missing: Callable[[DBAPIError], bool]
) -> bool:
    """Return whether the mark was still there; it is gone then.

    :param is_missing: whether this error says that there is no such savepoint.
    :raises DBAPIError: another one.
    """
    assert isinstance(mark, SavepointMark)
    if mark.was_there is None:
        try:
            _send(connection, f"RELEASE SAVEPOINT {mark.name}")
            mark.was_there = True
        except DBAPIError as error:
            if not is_missing(error):
                raise
            mark.was_there = False
    return mark.was_there


def _send(connection: Connection, statement: str) -> None:
    """Send a statement past SQLAlchemy, in whose events it would be one of the program's."""
    driver_error: Any = connection.dialect.loaded_dbapi.Error
    try:
        with closing(connection.connection.cursor()) as cursor:
            cursor.execute(statement)
    except driver_error as error:
        raise wrapped_error(error, connection.dialect, statement) from error
