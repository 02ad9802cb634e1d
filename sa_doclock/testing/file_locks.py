"""The waits for the write lock of a SQLite file: of connections that run a statement that needs it.

SQLite has no list of waits, and a lock can be asked for in many ways: by BEGIN IMMEDIATE, by the
UPDATE of a flush, by the program's own text.  All of them are statements.  A test asks about a waiter
whose statement has begun before.  So the statements of all engines are noted from the import of the
test kit on: each connection of a database that is locked as a whole has in its ``info`` what it runs,
and whether it has the write lock.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, Final

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import ExceptionContext

from .server_waits import locks_database

COMMIT: Final = "COMMIT"
LONG_COMMIT: Final = 0.25
"""Seconds after which a COMMIT on SQLite waits for a reader, whom nothing names."""

_RUNS: Final = "sa_doclock.testing.runs"
_HAS_LOCK: Final = "sa_doclock.testing.has_lock"
_NEEDS_NO_LOCK: Final = re.compile(
    r"\s*(SELECT|PRAGMA(?! incremental_vacuum| user_version =)|SAVEPOINT|RELEASE|ROLLBACK"
    r"|BEGIN( DEFERRED)?\s*$)",
    re.IGNORECASE,
)


def needs_file_lock(statement: str) -> bool:
    """Return whether SQLite runs this statement under the write lock of the file."""
    return _NEEDS_NO_LOCK.match(statement) is None


def holds_file(connection: Connection, *, unknown: bool = True) -> bool:
    """Return whether this connection, which another thread may use, has the file's write lock.

    :param unknown: the answer of a transaction that began before the import of the kit.
    """
    with suppress(Exception):  # closed meanwhile
        return bool(connection.info.get(_HAS_LOCK, unknown)) and _in_transaction(connection)
    return False


def runs_for_file_lock(connection: Connection) -> bool:
    """Return whether this connection runs a statement for which it needs the lock, and has not got it."""
    with suppress(Exception):
        statement = connection.info.get(_RUNS)
        needs = statement is not None and needs_file_lock(statement)
        return needs and not holds_file(connection, unknown=False)
    return False


def waits_for_file(statement: str | None, quiet: float, *, other_holds: bool) -> bool:
    """Return whether a connection waits for the file, by the statement that it runs.

    :param quiet: the seconds for which it has run.
    :param other_holds: the other one has the file's write lock.
    """
    if statement is None:
        return False
    if statement == COMMIT:
        return quiet >= LONG_COMMIT
    return needs_file_lock(statement) and other_holds


def _in_transaction(connection: Connection) -> bool:
    driver: Any = connection.connection.driver_connection
    return bool(driver.in_transaction)


@event.listens_for(Engine, "before_cursor_execute")
def _note_begun(connection: Connection, _cursor: Any, statement: str, *_: object) -> None:
    if locks_database(connection):
        if not _in_transaction(connection):  # the one that had the lock has ended, in whatever way
            connection.info[_HAS_LOCK] = False
        connection.info[_RUNS] = statement


@event.listens_for(Engine, "after_cursor_execute")
def _note_ended(connection: Connection, _cursor: Any, statement: str, *_: object) -> None:
    if locks_database(connection):
        connection.info[_RUNS] = None
        if needs_file_lock(statement) and _in_transaction(connection):
            connection.info[_HAS_LOCK] = True


@event.listens_for(Engine, "handle_error")
def _note_failed(context: ExceptionContext) -> None:
    connection = context.connection
    if connection is not None and locks_database(connection) and not connection.invalidated:
        connection.info[_RUNS] = None
