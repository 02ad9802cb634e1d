"""SQLite 3 by file, in WAL or rollback-journal mode: sqlite3, aiosqlite, pysqlcipher.

There are no row locks; the transaction has the lock.  BEGIN IMMEDIATE is the write lock on the
whole file; BEGIN followed by a read is a snapshot (WAL), or a lock that prevents writers from
committing (rollback journal).  Both are stronger than the requested lock.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Final

from sqlalchemy import Connection, DateTime, Engine, Table, false, update
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from ..errors import (
    LockFailed,
    LockNotAvailable,
    LockNotSupported,
    SnapshotConflict,
    WrongIsolation,
)
from ..options import LockOptions, base_of, milliseconds
from ..sqlalchemy_internals import connects_by_url
from .base import (
    AUTOCOMMIT,
    ErrorCode,
    ErrorCodes,
    IsolationLevels,
    Locked,
    LockStatements,
    LockStrategy,
    LockWaits,
    MaxParameters,
    NamedLocks,
    NativeCode,
    PlainReads,
    ServerClock,
    TransactionLifecycle,
    TransactionStatus,
)
from .connection import ask_driver, is_rolled_back_later, other_connection
from .error_codes import code_of
from .names import schema_of
from .transactions import SavepointMarks

_SHARED_CONNECTION = (
    "all sessions of this engine share this one connection, and so one transaction and its locks. "
    "Use a database file"
)
# One connection for all sessions, or per thread: a commit also commits other sessions' changes.
_SHARING_POOLS = (StaticPool, SingletonThreadPool)
# In Connection.info: the number of rows that it had written when its transaction began.
_CHANGES = "sa_doclock.changes"
_OWN_BEGIN = "sa_doclock.own_begin"  # also there: whether before_savepoint() sent BEGIN
_WRITABLE = "sa_doclock.writable"  # also there: whether the file is known to be writable
# In a transaction that has not read: after a read, SQLite does not wait for the write lock.  It
# does nothing else, except that it frees one page at most with auto_vacuum = INCREMENTAL:
# https://www.sqlite.org/pragma.html#pragma_incremental_vacuum
_TAKE_WRITE_LOCK = "PRAGMA incremental_vacuum(1)"
_WRITE_LOCK_OF_SCHEMA = "PRAGMA {}.incremental_vacuum(1)"
_READ_LIMIT = "PRAGMA busy_timeout"
_SET_LIMIT = "PRAGMA busy_timeout = {}"
_SQLITE_ERROR = 1  # the primary result code of a statement that cannot be compiled
_SQLITE_READONLY = 8
_READ_ONLY = "SQLite cannot lock a file opened read-only. Read with SnapshotRead"
_NO_FILE_LOCKS = (
    "the connection opened the file without locks (nolock=1, immutable=1, or a VFS such as unix-none), "
    "so two connections can write it at once. Open it without these parameters"
)
_LOCKS_FILE = "sa_doclock.locks_file"  # in LockStrategy.findings: whether it was found to
_IMMUTABLE = re.compile(r"\bimmutable=(?:1|yes|true|on)\b", re.IGNORECASE)
_CODES_ON_PYTHON_3_10 = {
    "database is locked": 5,
    "database table is locked": 6,
    "attempt to write a readonly database": 8,
}


class SQLiteErrors(ErrorCodes):
    # https://www.sqlite.org/rescode.html
    codes = {
        5: ErrorCode(LockNotAvailable),  # SQLITE_BUSY
        6: ErrorCode(LockNotAvailable),  # SQLITE_LOCKED: another connection of a shared cache
        517: ErrorCode(SnapshotConflict),  # SQLITE_BUSY_SNAPSHOT: never waits, busy_timeout or not
        # mode=ro, PRAGMA query_only, or the file's permissions
        _SQLITE_READONLY: ErrorCode(in_lock=LockNotSupported, why=_READ_ONLY),
    }

    def native_code(self, orig: BaseException) -> NativeCode | None:
        code: int | None = getattr(orig, "sqlite_errorcode", None)
        if code is not None:
            return code if code in self.codes else code & 0xFF  # the primary code
        # sqlite_errorcode exists since Python 3.11,
        # https://docs.python.org/3/whatsnew/3.11.html#sqlite3; before, there is only the text,
        # which does not distinguish SQLITE_BUSY_SNAPSHOT from SQLITE_BUSY.
        text = str(orig).partition(":")[0]  # ".. is locked: lk_order"
        return (
            _CODES_ON_PYTHON_3_10.get(text) if isinstance(orig, sqlite3.OperationalError) else None
        )


class SQLiteIsolation(IsolationLevels):
    levels: ClassVar[Mapping[LockOptions, tuple[str, ...]]] = {}  # one level, SERIALIZABLE
    plain_reads: ClassVar[
        Mapping[str, PlainReads]
    ] = {}  # the driver begins no transaction for a read

    def ask_level(self, connection: Connection) -> str | None:
        return None


class SQLiteStatements(LockStatements):
    locked = Locked.DATABASE
    # SQLITE_MAX_VARIABLE_NUMBER was 999 before SQLite 3.32: https://www.sqlite.org/limits.html
    max_parameters = MaxParameters(900)


class SQLiteStatus(TransactionStatus):
    def in_transaction(self, connection: Connection, cursor: Any = None) -> bool | None:
        # SQLite itself rolls back the whole transaction after ON CONFLICT ROLLBACK,
        # RAISE(ROLLBACK), an interrupt or a full disk, and no error number shows it:
        # https://www.sqlite.org/lang_transaction.html
        driver: Any = connection.connection.driver_connection
        try:
            # On a closed connection of sqlite3, only the second attribute raises.
            return bool(driver.in_transaction) or driver.total_changes < 0
        except (sqlite3.Error, ValueError):  # aiosqlite
            return None


class SQLiteLifecycle(TransactionLifecycle):
    def begun(self, connection: Connection, *, lent: bool) -> None:
        driver: Any = connection.connection.driver_connection
        connection.info[_CHANGES] = driver.total_changes
        connection.info[_OWN_BEGIN] = False

    def before_savepoint(self, connection: Connection) -> None:
        # A SAVEPOINT outside a transaction starts one: its RELEASE would commit, and release locks
        # that the session still counts on.
        driver: Any = connection.connection.driver_connection
        if not driver.in_transaction:
            connection.exec_driver_sql("BEGIN")
            connection.info[_OWN_BEGIN] = True

    def commit_failed(self, connection: Connection, cursor: Any = None) -> None:
        # A cursor with unread rows, which the traceback keeps alive, would keep the transaction
        # open after close(), with the lock on the file.
        if cursor is not None:
            cursor.close()
        # SQLITE_BUSY at COMMIT leaves the transaction open, with a lock that excludes every other
        # connection, while SQLAlchemy returns the connection without a ROLLBACK.
        driver: Any = connection.connection.driver_connection
        if driver.in_transaction:
            connection.connection.dbapi_connection.rollback()  # type: ignore[union-attr]

    def closed_to_forks(self, connection: Connection) -> Callable[[Engine], str | None] | None:
        # SQLite keeps a process's locks on a file in one table, which a fork inherits.  A new
        # connection in the child then relies on a lock that the system did not give to its process:
        # it reads without a lock, and can never write.  findInodeInfo() and unixLock() in
        # src/os_unix.c;
        # https://www.sqlite.org/howtocorrupt.html#_carrying_an_open_database_across_a_fork_
        driver: Any = connection.connection.driver_connection
        file = _file_of(connection.engine)
        if file is None or not driver.in_transaction:
            return None
        return lambda engine: _IN_FORK if _is_same(file, _file_of(engine)) else None


_IN_FORK: Final = "the forked process inherited SQLite's record of the file locks, so none of its connections can lock the file"


def _file_of(engine: Engine) -> str | None:
    name = engine.url.database if engine.dialect.name == SQLiteLocks.name else None
    in_memory = not name or ":memory:" in name or "mode=memory" in str(engine.url)
    return None if in_memory else name


def _is_same(file: str, other: str | None) -> bool:
    if other is None:
        return False
    try:
        return Path(file).samefile(other)
    except OSError:  # a URI, or no file
        return file == other


class SQLiteWaits(LockWaits):
    def limited(
        self,
        connection: Connection,
        lock: LockOptions,
        seconds: float | None,
        *,
        few_rows: bool = False,
    ) -> AbstractContextManager[None]:
        if base_of(lock) is LockOptions.ForUpdate:
            return nullcontext()  # begin() or join() has waited: the writer need not wait again
        return _limited(connection, lock, seconds)

    def sent_around(
        self, connection: Connection, lock: LockOptions, seconds: float | None
    ) -> tuple[str, ...]:
        limit = _limit_of(lock, seconds)
        if limit is None:
            return ()
        return _READ_LIMIT, _SET_LIMIT.format(limit), _SET_LIMIT.format(_limit(connection))

    def longest(self, connection: Connection) -> float | None:
        return _limit(connection) / 1000


def _limit_of(lock: LockOptions, seconds: float | None) -> int | None:
    """Return how many milliseconds a lock may wait for the file; None: the connection's own timeout."""
    if LockOptions.NoWait in lock:
        return 0
    return None if seconds is None else milliseconds(seconds)


def _limit(connection: Connection) -> int:
    # Not by SQLAlchemy, where reading, setting and restoring it would cost as much as the lock.
    ((limit,),) = ask_driver(connection, _READ_LIMIT)
    return int(limit)


@contextmanager
def _limited(connection: Connection, lock: LockOptions, seconds: float | None) -> Iterator[None]:
    """Limit the connection's wait for the file in this block to the lock's limit."""
    limit = _limit_of(lock, seconds)
    if limit is None:
        yield
        return
    old = _limit(connection)
    try:
        ask_driver(connection, _SET_LIMIT.format(limit))
        yield
    finally:
        if not connection.invalidated:
            ask_driver(connection, _SET_LIMIT.format(old))


def _send_limited(
    connection: Connection, lock: LockOptions, seconds: float | None, statement: str
) -> None:
    with _limited(connection, lock, seconds):
        try:
            connection.exec_driver_sql(statement).close()
        except OperationalError as error:
            _refuse_read_only(error)
            raise


def _refuse_read_only(error: OperationalError) -> None:
    # If the program's own statement locks, there is no error of a driver.
    if error.orig is not None and SQLiteLocks.errors.native_code(error.orig) == _SQLITE_READONLY:
        raise LockNotSupported(_READ_ONLY) from error


class SQLiteNamedLocks(NamedLocks):
    def take(
        self, connection: Connection, key: str, lock: LockOptions, seconds: float | None
    ) -> type[LockFailed] | None:
        return None  # the transaction has the write lock of the whole file


class SQLiteLocks(LockStrategy):
    name = "sqlite"
    errors = SQLiteErrors()
    isolation = SQLiteIsolation()
    statements = SQLiteStatements()
    status = SQLiteStatus()
    lifecycle = SQLiteLifecycle()
    # SQLITE_ERROR, as after any other mistake
    marks = SavepointMarks(lambda error: "no such savepoint" in str(error.orig))
    waits = SQLiteWaits()
    named_locks = SQLiteNamedLocks()
    # "SQLite uses a more general dynamic type system": https://www.sqlite.org/datatype3.html
    limits_by_type = False
    # The clock of the process, in milliseconds, in UTC: "The 'now' argument to date and time
    # functions always returns exactly the same value for multiple invocations within the same
    # sqlite3_step() call": https://www.sqlite.org/lang_datefunc.html
    refused = {
        LockOptions.SkipLocked: "SQLite locks the file, not rows, so there is nothing to skip"
    }
    clock = ServerClock("strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'", DateTime)

    def check_table(
        self,
        connection: Connection,
        table: Table,
        lock: LockOptions | None = None,
        seconds: float | None = None,
        *,
        adopted: bool = False,
    ) -> None:
        # An ATTACHed file has its own write lock, and may be read-only.  BEGIN IMMEDIATE takes the
        # lock of each writable file, and ignores the others:
        # https://www.sqlite.org/lang_attach.html
        schema = schema_of(connection, table)
        if schema is not None and lock is not None and base_of(lock) is LockOptions.ForUpdate:
            quoted = connection.dialect.identifier_preparer.quote(schema)
            _send_limited(connection, lock, seconds, _WRITE_LOCK_OF_SCHEMA.format(quoted))

    def check_autocommit(self, connection: Connection) -> None:
        # autocommit exists since Python 3.12, and its default is an int:
        # https://docs.python.org/3/library/sqlite3.html#sqlite3.Connection.autocommit
        if getattr(connection.connection.dbapi_connection, "autocommit", None) is True:
            raise LockNotSupported(AUTOCOMMIT)

    def begin(self, connection: Connection, lock: LockOptions, seconds: float | None) -> None:
        if _LOCKS_FILE not in self.findings:
            self._check_file(connection)
        adapted = connection.connection
        driver: Any = adapted.driver_connection
        if driver.in_transaction:
            self._go_on(connection, lock, seconds)
            return
        if adapted.dbapi_connection.isolation_level is None:  # type: ignore[union-attr]
            raise LockNotSupported(AUTOCOMMIT)
        self._send_begin(connection, lock, seconds)

    def _check_file(self, connection: Connection) -> None:
        """:raises LockNotSupported: another session of this engine could take the same lock."""
        shares = isinstance(connection.engine.pool, _SHARING_POOLS)
        if shares and not is_rolled_back_later(connection):
            raise LockNotSupported(_SHARED_CONNECTION)
        if _may_have_no_locks(connection.engine) and not _excludes_others(connection):
            raise LockNotSupported(_NO_FILE_LOCKS)
        if not shares:
            self.findings[_LOCKS_FILE] = True  # asked once of an engine

    def _send_begin(self, connection: Connection, lock: LockOptions, seconds: float | None) -> None:
        if base_of(lock) is not LockOptions.ForUpdate:
            connection.exec_driver_sql("BEGIN")  # does not wait: the first SELECT may
            return
        limited = seconds is not None or LockOptions.NoWait in lock  # usually not: saves a call
        with _limited(connection, lock, seconds) if limited else nullcontext():
            try:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                if _WRITABLE not in connection.info:
                    if _may_be_read_only(connection.engine):  # it has taken no lock then
                        ask_driver(connection, _TAKE_WRITE_LOCK)
                    connection.info[_WRITABLE] = True
            except OperationalError as error:
                _refuse_read_only(error)
                raise

    def _go_on(self, connection: Connection, lock: LockOptions, seconds: float | None) -> None:
        # An engine hook or sqlite3's autocommit=False has just sent BEGIN, or an after_begin
        # listener has written, and that write must not be lost.
        driver: Any = connection.connection.driver_connection
        for_update = base_of(lock) is LockOptions.ForUpdate
        written = driver.total_changes != connection.info.get(_CHANGES)
        if not written and (connection.info.get(_OWN_BEGIN) or not for_update):
            connection.exec_driver_sql("ROLLBACK")  # the hook may have sent BEGIN IMMEDIATE
            self._send_begin(connection, lock, seconds)
        elif for_update:
            _send_limited(connection, lock, seconds, _TAKE_WRITE_LOCK)

    def join(
        self,
        connection: Connection,
        lock: LockOptions,
        seconds: float | None,
        opened_for: LockOptions | None,
        header: Table | None,
    ) -> None:
        if _LOCKS_FILE not in self.findings:
            self._check_file(connection)
        opened, wanted = base_of(opened_for or LockOptions.None_), base_of(lock)
        if opened is LockOptions.SharedRead and wanted is LockOptions.ForUpdate:
            raise WrongIsolation(
                "the transaction reads the snapshot of an earlier SharedRead. "
                "Take the ForUpdate lock first, or in a transaction of its own"
            )
        if opened is LockOptions.None_ and wanted is not LockOptions.SnapshotRead:
            # It is too late for BEGIN IMMEDIATE.  An UPDATE of no row takes the same lock, and
            # fails with 517 if earlier reads are outdated.
            with _limited(connection, lock, seconds):
                try:
                    _take_write_lock(connection, header)
                except OperationalError as error:
                    _refuse_read_only(error)
                    raise


def _may_be_read_only(engine: Engine) -> bool:
    """Return whether the file may be opened read-only: by a URI, or for lack of permission.

    True also if the program opens it, by ``creator=`` or in a listener for ``do_connect``.
    """
    file = engine.url.database
    if _may_have_no_locks(engine):
        return True
    if not file or file == ":memory:":
        return False
    return os.access(file, os.F_OK) and not os.access(file, os.W_OK)


def _may_have_no_locks(engine: Engine) -> bool:
    """Return whether parameters of a URI, or the program's own connect, may disable locks."""
    by_url = connects_by_url(engine.pool) and not engine.dialect.dispatch.do_connect
    return not by_url or (engine.url.database or "").startswith("file:")


def _excludes_others(connection: Connection) -> bool:
    """Return whether one of two other connections waits for the other; no PRAGMA shows it.

    True also if the file is read-only, or the database is in memory.
    """
    if _IMMUTABLE.search(str(connection.engine.url)):
        return False
    files = {name: file for _, name, file in ask_driver(connection, "PRAGMA database_list")}
    if not files.get("main"):
        return True
    with other_connection(connection) as first, other_connection(connection) as second:
        return not (_takes_write_lock(first) and _takes_write_lock(second))


def _takes_write_lock(connection: Connection) -> bool:
    try:
        for statement in (_SET_LIMIT.format(0), "BEGIN IMMEDIATE", _TAKE_WRITE_LOCK):
            ask_driver(connection, statement)
    except DBAPIError as error:
        if code_of(SQLiteLocks.errors, error) not in SQLiteLocks.errors.codes:
            raise
        return False
    return True


def _take_write_lock(connection: Connection, table: Table | None) -> None:
    if table is None:
        _write_user_version(connection, None)
        return
    keys = {column.name: column for column in table.primary_key}
    try:
        connection.execute(update(table).where(false()).values(keys))
    except OperationalError as error:
        # Python 3.10 has no code; a held lock also refuses the second way.
        if getattr(error.orig, "sqlite_errorcode", _SQLITE_ERROR) != _SQLITE_ERROR:
            raise
        # A view, which has no UPDATE.  Only that statement is undone.
        _write_user_version(connection, connection.schema_for_object(table))


def _write_user_version(connection: Connection, schema: str | None) -> None:
    # There may be no table at all.  The number is the program's; it stays unchanged.
    prefix = "" if schema is None else connection.dialect.identifier_preparer.quote(schema) + "."
    number = connection.exec_driver_sql(f"PRAGMA {prefix}user_version").scalar_one()
    connection.exec_driver_sql(f"PRAGMA {prefix}user_version = {int(number)}")
