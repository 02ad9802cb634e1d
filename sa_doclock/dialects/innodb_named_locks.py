"""The named locks of MySQL and MariaDB, by GET_LOCK."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy import Connection, TextClause, text
from sqlalchemy.exc import DBAPIError

from ..errors import LockFailed, LockNotAvailable
from ..options import LockOptions
from ..pool import ExecuteStatement, execute_now, on_return, withdraw
from .error_codes import ErrorCodes, Limit, code_of
from .named_locks import NamedLocks, remember_key, short_name

_LONGEST_NAME: Final = 64
# The server detects no deadlock between named locks and row locks, so every wait has a limit.  A
# limit of -1 waits indefinitely on MySQL, and is an error on MariaDB.
_TAKE: Final = text("SELECT GET_LOCK(:name, @@innodb_lock_wait_timeout)")
_TRY: Final = text("SELECT GET_LOCK(:name, 0)")
_SHORTEST: Final = 0.001


class InnoDBNamedLocks(NamedLocks):
    """The named locks of one of the two products.

    :param wait: returns GET_LOCK of ``:name``, with a limit in seconds.
    :param errors: of the product.
    """

    end_with_transaction = False

    def __init__(self, wait: Callable[[float], TextClause], errors: ErrorCodes) -> None:
        self._wait, self._errors = wait, errors

    def take(
        self, connection: Connection, key: str, lock: LockOptions, seconds: float | None
    ) -> type[LockFailed] | None:
        statement = _TRY if LockOptions.NoWait in lock else self._statement(seconds)
        return None if self._take_name(connection, key, statement) else LockNotAvailable

    @contextmanager
    def while_inserting(
        self, connection: Connection, key: str, seconds: float | None
    ) -> Iterator[bool]:
        """Take the lock for a block that inserts a row; see ``LockStrategy.inserting()``."""
        release = self._take_name(connection, key, self._statement(seconds))
        if release is None:
            raise LockNotAvailable("other transactions are inserting the same row. Try again later")
        try:
            yield True
        finally:
            execute_now(connection, release)

    def _statement(self, seconds: float | None) -> TextClause:
        if seconds is None:
            return _TAKE
        # A limit of a millisecond ends even statements that do not wait.
        return _TRY if seconds <= _SHORTEST else self._wait(seconds)

    def _take_name(
        self, connection: Connection, key: str, statement: TextClause
    ) -> ExecuteStatement | None:
        """Take a named lock; return its release for the connection's return to the pool, or None."""
        # A name is valid in all databases of the server, and the lock belongs to the connection,
        # not to the transaction.  Each granted GET_LOCK needs a RELEASE_LOCK; an extra one has no
        # effect, so register it before the answer arrives.
        name = short_name(f"{_database(connection)}.{key}", _LONGEST_NAME)
        remember_key(key, name)
        release = ExecuteStatement(f"DO RELEASE_LOCK('{name}')")
        on_return(connection, release)
        try:
            # NULL, on MariaDB, means that KILL QUERY or max_statement_time ended the wait
            answer = connection.execute(statement, {"name": name}).scalar_one()
        except DBAPIError as error:
            if self._errors[code_of(self._errors, error)].limit is not Limit.STATEMENT:
                raise
            execute_now(connection, release)  # the limit may have come after the grant
            return None
        if answer != 1:
            withdraw(connection, release)
            return None
        return release


def _database(connection: Connection) -> str:
    """Return the name of the database, with its dots escaped: a dot separates it from the key."""
    database = connection.dialect.default_schema_name or ""
    return database.replace("%", "%25").replace(".", "%2E")
