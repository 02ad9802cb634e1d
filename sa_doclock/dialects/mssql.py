"""SQL Server 2016 and later: pyodbc, aioodbc, pymssql, mssql-python.

This project's tests have never run against a real server: docs/mssql.md has the evidence for each
claim.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from typing import Any

from sqlalchemy import Connection, Integer, Table, bindparam, literal, select, text
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.types import TypeEngine

from ..errors import (
    DeadlockDetected,
    LockFailed,
    LockNotAvailable,
    LockNotSupported,
)
from ..interruptions import ErrorsIgnored
from ..keys import Identity
from ..options import LockOptions, base_of, milliseconds
from ..pool import ExecuteStatement, on_return
from .base import (
    AUTOCOMMIT,
    READ_COMMITTED,
    REPEATABLE_READ,
    SNAPSHOT,
    IsolationLevels,
    Locked,
    LockMonitoring,
    LockStatements,
    LockStrategy,
    LockWaits,
    NamedLocks,
    PlainReads,
    ServerClock,
    TransactionLifecycle,
    TransactionMarks,
)
from .compatible_servers import find_server
from .connection import ask_driver, connection_setting, other_connection, rewritten_statements
from .lock_statements import LockText, MaxParameters, index_like_rows
from .mssql_errors import SQLServerErrors
from .mssql_keys import StoredKey
from .named_locks import short_name
from .names import quoted_name
from .waits import text_with_numbers

_READ_ONLY = (
    "the database is read-only here, as on a readable secondary, and SQL Server ignores locking hints "
    "there. Connect without ApplicationIntent=ReadOnly, or read by SnapshotRead"
)
_LIKE_ROWS = (
    "SQL Server may lock entries of an index of {!r} instead of its rows: the index {} begins with a "
    "column of the primary key and covers the table. Leave a column out of the index"
)
_LOCK_TIMEOUT = "SELECT @@LOCK_TIMEOUT"
# "CURRENT_TRANSACTION_ID", Permissions: "Any user can return the transaction ID of the current
# session."  https://learn.microsoft.com/sql/t-sql/functions/current-transaction-id-transact-sql
_TRANSACTION_ID = "SELECT CURRENT_TRANSACTION_ID()"
# "SERVERPROPERTY", EngineEdition,
# https://learn.microsoft.com/sql/t-sql/functions/serverproperty-transact-sql
# Only Babelfish has the property Babelfish: SQL Server returns NULL.
_PRODUCT = (
    "SELECT @@VERSION, CAST(SERVERPROPERTY('EngineEdition') AS int), "
    "CAST(SERVERPROPERTY('Babelfish') AS int)"
)
_NAMES_ARE_OF = "SELECT CONCAT(DB_NAME(), '.', SCHEMA_NAME())"
_BEGIN_IF_NONE = "IF @@TRANCOUNT = 0 BEGIN TRANSACTION"
_DEADLOCK_PRIORITY = "SELECT deadlock_priority FROM sys.dm_exec_sessions WHERE session_id = @@SPID"

# Not pymssql, which writes parameters into the text: that is no separate batch.
_PARAMETERS_BY_SERVER = frozenset({"pyodbc", "aioodbc", "mssqlpython"})
_FOR_UPDATE, _SHARED = LockOptions.ForUpdate, LockOptions.SharedRead
_NOWAIT, _SKIP = LockOptions.NoWait, LockOptions.SkipLocked
# "Table hints", READPAST: it "can't be specified when the READ_COMMITTED_SNAPSHOT database option
# is set to ON" at READ COMMITTED; "include the READCOMMITTEDLOCK table hint in the query".  The
# Remarks there list ROWLOCK and READCOMMITTEDLOCK in one group, of which only one is allowed.
# Servers accept both together: see tests/sql/evidence.md.  Without ROWLOCK, READPAST may wait for a
# page lock.
_SKIPPING = "UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK"
# FORCESEEK: "the query optimizer uses only an index seek operation as the access path",
# https://learn.microsoft.com/sql/t-sql/queries/hints-transact-sql-table
# Otherwise a small table, or one with a long IN list, is scanned, and the scan locks, and waits
# for, each row that it passes.
_LOCK_AND_SKIP = LockText(
    f"WITH ({_SKIPPING})", f"WITH ({_SKIPPING}, FORCESEEK)", "WITH (READCOMMITTEDLOCK, READPAST)"
)

# https://learn.microsoft.com/sql/relational-databases/system-stored-procedures/sp-getapplock-transact-sql
# The server truncates a longer @Resource, so that keys would share locks.
_LONGEST_NAME = 255
_TAKE_KEY = (
    "DECLARE @doclock int; "
    "EXEC @doclock = sp_getapplock @Resource = :name, @LockMode = '{mode}', "
    "@LockOwner = 'Transaction'{limit}; "
    "SELECT @doclock"
)
_REFUSED_BY_VALUE: dict[int, type[LockFailed]] = {
    -1: LockNotAvailable,  # timed out
    -2: LockNotAvailable,  # canceled
    -3: DeadlockDetected,  # chosen as the victim: nothing is rolled back
}
# "Optimized locking" (Azure SQL, SQL Server 2025): for changed rows, "the only lock held until end
# of transaction is the X lock on the TID resource", listed as XACT and without a table.
# The server lists row locks by hashes of their keys.  The function that returns the hash of a row,
# %%lockres%%, is undocumented, and Microsoft's own parser does not know it: so search by table.
# The page spells a range lock RangeS_U; servers were seen to spell it RangeS-U.
# https://learn.microsoft.com/sql/relational-databases/system-dynamic-management-views/sys-dm-tran-locks-transact-sql
_HOLDERS = text("""
    SELECT l.request_session_id, MAX(CASE WHEN l.resource_type = 'OBJECT' THEN 1 ELSE 0 END)
    FROM sys.dm_tran_locks AS l LEFT JOIN sys.partitions AS p
    ON p.hobt_id = l.resource_associated_entity_id
    WHERE l.resource_database_id = DB_ID() AND l.request_status = 'GRANT'
    AND l.request_session_id <> @@SPID
    AND (l.resource_type IN ('KEY', 'RID', 'PAGE', 'HOBT') AND p.object_id = OBJECT_ID(:name)
    AND REPLACE(l.request_mode, '-', '_') IN ('U', 'X', 'UIX', 'BU', 'RangeS_U', 'RangeI_U',
    'RangeI_X', 'RangeX_S', 'RangeX_U', 'RangeX_X') OR l.resource_type = 'XACT' AND l.request_mode = 'X'
    OR l.resource_type = 'OBJECT' AND l.resource_associated_entity_id = OBJECT_ID(:name)
    AND l.request_mode IN ('S', 'SIX', 'U', 'UIX', 'X', 'BU', 'Sch-M'))
    GROUP BY l.request_session_id""")
_CONNECTIONS = text("""
    SELECT s.session_id, s.login_name, s.program_name, s.status,
    (SELECT MAX(DATEDIFF(second, a.transaction_begin_time, SYSDATETIME()))
    FROM sys.dm_tran_session_transactions AS t JOIN sys.dm_tran_active_transactions AS a
    ON a.transaction_id = t.transaction_id WHERE t.session_id = s.session_id),
    COALESCE(running.text, latest.text), s.host_name
    FROM sys.dm_exec_sessions AS s
    LEFT JOIN sys.dm_exec_requests AS r ON r.session_id = s.session_id
    LEFT JOIN sys.dm_exec_connections AS c ON c.session_id = s.session_id
    AND c.parent_connection_id IS NULL
    OUTER APPLY sys.dm_exec_sql_text(r.sql_handle) AS running
    OUTER APPLY sys.dm_exec_sql_text(c.most_recent_sql_handle) AS latest
    WHERE s.session_id IN :ids""").bindparams(bindparam("ids", expanding=True))
_WAITS = text("""
    SELECT w.session_id, w.blocking_session_id,
    CASE WHEN l.resource_database_id = DB_ID() THEN
    COALESCE(OBJECT_SCHEMA_NAME(p.object_id) + '.' + OBJECT_NAME(p.object_id),
    CASE WHEN l.resource_type = 'OBJECT'
    THEN OBJECT_SCHEMA_NAME(l.resource_associated_entity_id) + '.'
    + OBJECT_NAME(l.resource_associated_entity_id) END) END,
    CASE WHEN l.resource_type IN ('KEY', 'RID', 'APPLICATION', 'XACT')
    THEN l.resource_description END,
    w.wait_duration_ms / 1000.0
    FROM sys.dm_os_waiting_tasks AS w
    JOIN sys.dm_tran_locks AS l ON l.lock_owner_address = w.resource_address
    LEFT JOIN sys.partitions AS p ON p.hobt_id = l.resource_associated_entity_id
    WHERE w.blocking_session_id IS NOT NULL AND w.blocking_session_id <> w.session_id""")
_SHORT_TIMEOUT = "SET LOCK_TIMEOUT 500"
_STRICTER = (REPEATABLE_READ, "SERIALIZABLE")
_SKIPPING_LEVELS = (READ_COMMITTED, REPEATABLE_READ)  # otherwise error 650
# "Active Secondaries: Readable Secondary Replicas", Benefits: "All queries that run against the
# secondary databases are automatically mapped to snapshot isolation transaction level, even when other
# transaction isolation levels are explicitly set.  Also, all locking hints are ignored."
# "DATABASEPROPERTYEX", Updateability: "READ_ONLY: Database supports data reads but not data
# modifications."  https://learn.microsoft.com/sql/t-sql/functions/databasepropertyex-transact-sql
_UPDATEABILITY = "SELECT CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS varchar(20))"
_WRITABLE = "sa_doclock.writable"
_TEMPORAL = "SELECT COUNT(*) FROM sys.tables WHERE temporal_type = 2"
_SOME_SECONDS = 4.321  # no server has it as its default LOCK_TIMEOUT
_WITH_PARAMETER = select(literal(1, Integer))  # sent in the same way as a lock by key


class SQLServerMonitoring(LockMonitoring):
    def connection_id(self, connection: Connection) -> int | None:
        cursor: Any = connection.connection.cursor()  # no driver knows it by itself
        with closing(cursor):
            cursor.execute("SELECT @@SPID")
            return int(cursor.fetchone()[0])

    def holders(
        self, connection: Connection, header: Table, keys: Sequence[Identity], *, shared: bool
    ) -> Mapping[int, bool]:
        connection.exec_driver_sql(_SHORT_TIMEOUT)
        found = connection.execute(_HOLDERS, {"name": quoted_name(connection, header)}).all()
        return {pid: True for pid, sure in found if sure} or {pid: False for pid, _ in found}

    def waits(self, connection: Connection) -> Iterable[Sequence[Any]]:
        connection.exec_driver_sql(_SHORT_TIMEOUT)
        return connection.execute(_WAITS)

    def connections(self, connection: Connection, ids: Collection[int]) -> Iterable[Sequence[Any]]:
        return connection.execute(_CONNECTIONS, {"ids": ids})


def _timestamp() -> TypeEngine[Any]:
    from sqlalchemy.dialects.mssql import DATETIME2  # noqa: PLC0415  # loaded where it is used

    found: TypeEngine[Any] = DATETIME2(6)  # type: ignore[no-untyped-call]
    return found


class SQLServerIsolation(IsolationLevels):
    levels = {
        # The stricter levels make reads take locks as well, so reads after the grant are current.
        _FOR_UPDATE: (READ_COMMITTED, *_STRICTER),
        _FOR_UPDATE | _SKIP: _SKIPPING_LEVELS,
        # A reader that holds S(header) and waits for X(detail), and a writer that holds X(detail)
        # and waits for U to X(header), deadlock: error 1205.  Row versions do not wait.
        _SHARED: (SNAPSHOT, READ_COMMITTED, *_STRICTER),
        _SHARED | _SKIP: _SKIPPING_LEVELS,
        LockOptions.SnapshotRead: (SNAPSHOT,),
    }
    plain_reads = {
        **dict.fromkeys(_STRICTER, PlainReads.CONFLICT),  # shared locks that remain
        SNAPSHOT: PlainReads.PAST_WRITERS | PlainReads.OLDER | PlainReads.CONFLICT,  # 3960
    }


class SQLServerStatements(LockStatements):
    # with_for_update() compiles to nothing here, so only a hint locks.
    texts = {
        _FOR_UPDATE: LockText("WITH (UPDLOCK, ROWLOCK)", "WITH (UPDLOCK, ROWLOCK, FORCESEEK)"),
        _FOR_UPDATE | _NOWAIT: LockText(
            "WITH (UPDLOCK, ROWLOCK, NOWAIT)",
            "WITH (UPDLOCK, ROWLOCK, NOWAIT, FORCESEEK)",
            "WITH (NOWAIT)",
        ),
        _FOR_UPDATE | _SKIP: _LOCK_AND_SKIP,
        # READPAST under SNAPSHOT is error 650, and a row version does not show whether the row is
        # locked: take the stronger lock.
        _SHARED | _SKIP: _LOCK_AND_SKIP,
        LockOptions.NoLock: LockText("WITH (NOLOCK)"),
    }
    # "Table hints", Remarks: "The table hints are ignored if the table isn't accessed by the query
    # plan.  This may be caused by the optimizer choosing not to access the table at all": for
    # example a join to a header over a trusted foreign key if only the key is read.  And: "if a
    # table has a nonclustered index, and a SELECT statement using a lock hint is handled by a
    # covering index, a lock is acquired on the index key in the covering index rather than on the
    # data row in the base table", so two sessions with two access paths both get it.
    locked = Locked.WHAT_IS_READ
    # 2,000 of 2,100: some drivers add their own.
    # "IN", Remarks: a statement with many values can "consume resources and return an error 8623 or
    # 8632".  Where that begins for an OR of composite keys is not known, so their number is small.
    # https://learn.microsoft.com/sql/t-sql/language-elements/in-transact-sql
    max_parameters = MaxParameters(2_000, of_or=200, left_out=1_000)
    snapshot_level = SNAPSHOT

    def key_type(self, type_: TypeEngine[Any]) -> TypeEngine[Any] | None:
        return None if isinstance(type_, Integer) else StoredKey(type_)


class SQLServerLifecycle(TransactionLifecycle):
    def before_rollback(self, connection: Connection) -> None:
        # ROLLBACK without a transaction is error 3903, which would replace the error that it
        # follows; whether the driver begins its next transaction then is not documented.
        if connection.closed or connection.invalidated:
            return
        with ErrorsIgnored(connection):
            _check_autocommit(connection)
            with closing(connection.connection.cursor()) as cursor:
                cursor.execute(_BEGIN_IF_NONE)


class BeginsAtOnce(SQLServerLifecycle):
    """Begins a transaction at once: its time is stored in the rows of temporal tables."""

    def begun(self, connection: Connection, *, lent: bool) -> None:
        if lent:
            return
        # A driver begins the next transaction at the end of the last one, perhaps hours ago.  ODBC
        # Driver 18 sends no commit for a transaction without statements.
        connection.exec_driver_sql("DECLARE @doclock int")
        connection.connection.commit()


class SQLServerMarks(TransactionMarks):
    """The ids of transactions."""

    def mark_transaction(self, connection: Connection) -> object:
        return connection.exec_driver_sql(_TRANSACTION_ID).scalar_one()

    def current_schema(self, connection: Connection) -> str | None:
        ((name,),) = ask_driver(connection, _NAMES_ARE_OF)
        return None if name is None else str(name)

    def has_mark(self, connection: Connection, mark: object) -> bool:
        ((transaction_id,),) = ask_driver(connection, _TRANSACTION_ID)
        return bool(transaction_id == mark)


class SQLServerWaits(LockWaits):
    """The waits at one server, which is asked once how it treats a limit."""

    _restores: bool | None = None

    def limited(
        self,
        connection: Connection,
        lock: LockOptions,
        seconds: float | None,
        *,
        few_rows: bool = False,
    ) -> AbstractContextManager[None]:
        if seconds is None and _NOWAIT not in lock:
            return nullcontext()
        if seconds is None:
            # The hint covers locks of rows and of the table.  Compiling the statement takes the
            # lock of the table's definition, which waits for DDL, before that.
            seconds = 0.0
        sends_batch = connection.dialect.driver in _PARAMETERS_BY_SERVER
        if sends_batch and self._restores_timeout(connection):
            return _lock_timeout_in_batch(connection, seconds)
        return _lock_timeout(connection, seconds)

    def _restores_timeout(self, connection: Connection) -> bool:
        """Return whether the server restores LOCK_TIMEOUT at the end of a batch with parameters.

        "SET statements" says so for sp_executesql and EXECUTE, but does not mention sp_prepexec.
        False also if it cannot be asked.
        """
        if self._restores is None:
            with suppress(LockNotSupported, SQLAlchemyError), other_connection(connection) as other:
                old = other.exec_driver_sql(_LOCK_TIMEOUT).scalar_one()
                with _lock_timeout_in_batch(other, _SOME_SECONDS):
                    other.execute(_WITH_PARAMETER)
                self._restores = other.exec_driver_sql(_LOCK_TIMEOUT).scalar_one() == old
        return bool(self._restores)

    def longest(self, connection: Connection) -> float | None:
        # in milliseconds; -1: no limit
        limit = int(connection.exec_driver_sql(_LOCK_TIMEOUT).scalar_one())
        return None if limit < 0 else limit / 1000

    def lower_deadlock_priority(self, connection: Connection) -> None:
        # It remains set on the connection.  Every account may read its own session's row.
        old = connection.exec_driver_sql(_DEADLOCK_PRIORITY).scalar_one()
        on_return(connection, ExecuteStatement(f"SET DEADLOCK_PRIORITY {int(old)}"))
        connection.exec_driver_sql("SET DEADLOCK_PRIORITY LOW")


class SQLServerNamedLocks(NamedLocks):
    def take(
        self, connection: Connection, key: str, lock: LockOptions, seconds: float | None
    ) -> type[LockFailed] | None:
        # Without @LockTimeout, @@LOCK_TIMEOUT applies, as to every other lock.
        wait = 0.0 if _NOWAIT in lock else seconds
        numbers = {} if wait is None else {"limit": milliseconds(wait)}
        words = _TAKE_KEY.format(
            mode="Exclusive" if base_of(lock) is _FOR_UPDATE else "Shared",
            limit=", @LockTimeout = :limit" if numbers else "",
        )
        statement = text_with_numbers(words, **numbers)
        name = short_name(key, _LONGEST_NAME)
        answer = int(connection.execute(statement, {"name": name}).scalar_one())
        if answer < 0 and answer not in _REFUSED_BY_VALUE:  # -999
            raise LockNotSupported(f"SQL Server refused the lock: sp_getapplock returned {answer}")
        return _REFUSED_BY_VALUE.get(answer)


class SQLServerLocks(LockStrategy):
    name = "mssql"
    errors = SQLServerErrors()
    marks = SQLServerMarks()
    lifecycle = SQLServerLifecycle()
    isolation = SQLServerIsolation()
    statements = SQLServerStatements()
    monitoring = SQLServerMonitoring()
    named_locks = SQLServerNamedLocks()
    # "Returns a datetime2(7) value that contains the date and time of the computer on which the
    # instance of SQL Server is running .. as UTC time":
    # https://learn.microsoft.com/sql/t-sql/functions/sysutcdatetime-transact-sql
    clock = ServerClock("CAST(SYSUTCDATETIME() AS DATETIME2(6))", _timestamp)

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self.waits = SQLServerWaits()

    def note_server(self, connection: Connection) -> None:
        version, edition, babelfish = connection.exec_driver_sql(_PRODUCT).one()
        words = f"EngineEdition {edition}; Babelfish {babelfish or 0}; {version}"
        self.compatible = find_server("mssql", words)
        if self.compatible is None:
            # A temporal table that is created later is found by the next process.
            temporal = int(connection.exec_driver_sql(_TEMPORAL).scalar_one())
            if temporal > 0:
                self.lifecycle = BeginsAtOnce()
        # If sys.system_views has the view, SQLAlchemy reads the level from sys.dm_exec_sessions.
        # Without a default level, the pool would close each connection whose level was set.  "SET
        # TRANSACTION ISOLATION LEVEL": "READ COMMITTED .. This option is the SQL Server default."
        if connection.dialect.default_isolation_level is None:
            connection.dialect.default_isolation_level = "READ COMMITTED"

    def begin(self, connection: Connection, lock: LockOptions, seconds: float | None) -> None:
        self._refuse_read_only(connection, lock)

    def join(
        self,
        connection: Connection,
        lock: LockOptions,
        seconds: float | None,
        opened_for: LockOptions | None,
        header: Table | None,
    ) -> None:
        self._refuse_read_only(connection, lock)

    def check_table(
        self,
        connection: Connection,
        table: Table,
        lock: LockOptions | None = None,
        seconds: float | None = None,
        *,
        adopted: bool = False,
    ) -> None:
        if adopted and lock is not None:
            self._refuse_read_only(connection, lock)
            if not isinstance(table, Table):
                return
        # A lock by key might seek either the row or only an entry of this index.
        index = next(index_like_rows(table), None)
        if index is not None:
            raise LockNotSupported(_LIKE_ROWS.format(table.name, getattr(index, "name", None)))

    def _refuse_read_only(self, connection: Connection, lock: LockOptions) -> None:
        if base_of(lock) is LockOptions.SnapshotRead:
            return
        writable = connection.info.get(_WRITABLE)  # stored with the connection to the server
        if writable is None:
            found = connection.exec_driver_sql(_UPDATEABILITY).scalar_one()
            writable = connection.info[_WRITABLE] = found != "READ_ONLY"
        if not writable:
            raise LockNotSupported(_READ_ONLY)

    def check_autocommit(self, connection: Connection) -> None:
        _check_autocommit(connection)

    @contextmanager
    def inserting(self, connection: Connection, key: str, seconds: float | None) -> Iterator[bool]:
        # The INSERT waits for another transaction's insert of the key.
        with nullcontext() if seconds is None else _lock_timeout(connection, seconds):
            yield False


def _check_autocommit(connection: Connection) -> None:
    driver: Any = connection.connection.dbapi_connection
    # "autocommit" of pymssql is a method; this is the state
    state = getattr(driver, "autocommit_state", None)
    if driver.autocommit if state is None else state:
        raise LockNotSupported(AUTOCOMMIT)


def _lock_timeout(connection: Connection, seconds: float) -> AbstractContextManager[None]:
    # It is a connection setting, which would return to the pool with it.
    return connection_setting(connection, _LOCK_TIMEOUT, "SET LOCK_TIMEOUT", milliseconds(seconds))


def _lock_timeout_in_batch(connection: Connection, seconds: float) -> AbstractContextManager[None]:
    # sp_executesql and sp_prepexec run a separate batch, at whose end the server restores SET
    # options: https://learn.microsoft.com/sql/t-sql/statements/set-statements-transact-sql
    limit = f"SET LOCK_TIMEOUT {milliseconds(seconds)}; "

    def rewrite(statement: str, parameters: Any) -> str:
        if parameters:
            return limit + statement
        # Without parameters, the driver sends the text unchanged, in the connection's own batch.
        quoted = (limit + statement).replace("'", "''")
        return f"EXEC sp_executesql N'{quoted}'"

    # Every SELECT of the block, including the search for the rows of a join, and a snapshot's
    # reader, which waits for a change of the table's definition (Sch-M).
    return rewritten_statements(connection, rewrite, "SELECT")
