"""SQL Server 2016 and later: pyodbc, aioodbc, pymssql.

Never run against a real server by this project's own tests: see docs/mssql.md for the
evidence behind each claim.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from typing import Any

from sqlalchemy import Connection, Integer, Table, bindparam, literal, select, text
from sqlalchemy.exc import SQLAlchemyError

from ..errors import (
    DeadlockDetected,
    LockFailed,
    LockNotAvailable,
    LockNotSupported,
    SnapshotConflict,
    WrongIsolation,
)
from ..lock_info import ACTIVE, IDLE, Identity, LockConnection, Wait
from ..options import LockOptions, base_of, milliseconds
from ..pool import ExecuteStatement, on_return
from .base import (
    AUTOCOMMIT,
    READ_COMMITTED,
    REPEATABLE_READ,
    SNAPSHOT,
    LockMonitoring,
    LockStrategy,
    NativeCode,
)
from .connection import ask_driver, connection_setting, rewritten_statements
from .monitoring import connections_by_id, elapsed_seconds
from .names import quoted_name, short_name
from .numbers import text_with_numbers

# pyodbc keeps the server's number only in its text, as ".. (1222) (SQLExecDirectW)",
# further records as "; [state] .. (3621)"; the texts between may have any content
_NUMBER_IN_TEXT = re.compile(r"\((\d+)\)(?= \(SQL\w+\)|; \[|$)")

# mssql-python gives no number, so only for this driver its text decides, which is English where the
# login's language is.
_TEXTS = {
    "Lock request time out period exceeded": 1222,
    "was deadlocked on": 1205,
    "aborted due to update conflict": 3960,
    "the object accessed by the statement has been modified by a DDL statement": 3961,
    "Transaction is rolled back when accessing version store": 3966,
    "because transaction time was earlier than period start time": 13535,
    "but the transaction did not start in snapshot isolation": 3951,
    "because snapshot isolation is not allowed in this database": 3952,
    "because the database was not recovered when the current transaction": 3953,
    "because the ALTER DATABASE command that disallows snapshot isolation": 3954,
    "because the ALTER DATABASE command which enables snapshot isolation": 3956,
    "could not produce a query plan because of the hints": 8622,
    "has no corresponding BEGIN TRANSACTION": 3903,
    "VIEW SERVER STATE permission was denied": 300,
}
_NO_SNAPSHOT = (
    "the database does not allow snapshot isolation, which readers need here; "
    "run op.enable_snapshot_isolation() (see docs/mssql.md)"
)
_READ_ONLY = (
    "the database is read-only here, as on a readable secondary, where SQL Server ignores all locking "
    "hints; connect without ApplicationIntent=ReadOnly, or read by SnapshotRead"
)
_NO_ROW_LOCKS = "the table is memory-optimized, and such tables take no locks"
_IN_TRANSITION = (
    "snapshot isolation is being switched on or off in this database; "
    "try again when ALTER DATABASE has ended"
)
# "Database Engine events and errors (3000 to 3999)": those whose text says that the transaction is
# gone, whatever was done in it.
# https://learn.microsoft.com/sql/relational-databases/errors-events/database-engine-events-and-errors-3000-to-3999
_ENDS_TRANSACTION = frozenset(
    {
        3609,  # "The transaction ended in the trigger."
        3616,  # ".. the user transaction, if any, has been rolled back"
        3907,  # "Transaction aborted when accessing versioned row", of a persistent version store
        3940,  # ".. the transaction was rolled back": locks of the commit
        3948,  # "The transaction was terminated", by a change of the availability replica
        3949,  # "Transaction aborted when accessing versioned row", on a readable secondary
        3958,  # "Transaction aborted when accessing versioned row", of tempdb
        3961,  # "Snapshot isolation transaction failed": DDL of another transaction
        3966,  # "Transaction is rolled back when accessing version store."
        3998,  # "Uncommittable transaction is detected .. The transaction is rolled back."
    }
)
_NO_SEEK = (
    "no index begins with the mapped primary key, so SQL Server would read, and lock, other rows "
    "too; add a primary key, or a unique index on these columns"
)
_LOCK_TIMEOUT = "SELECT @@LOCK_TIMEOUT"
# "CURRENT_TRANSACTION_ID", Permissions: "Any user can return the transaction ID of the current
# session."  https://learn.microsoft.com/sql/t-sql/functions/current-transaction-id-transact-sql
_TRANSACTION_ID = "SELECT CURRENT_TRANSACTION_ID()"
_DEADLOCK_PRIORITY = "SELECT deadlock_priority FROM sys.dm_exec_sessions WHERE session_id = @@SPID"

# Not pymssql, which writes the parameters into the text: that is no batch of its own.
_PARAMETERS_BY_SERVER = frozenset({"pyodbc", "aioodbc", "mssqlpython"})
_FOR_UPDATE, _SHARED = LockOptions.ForUpdate, LockOptions.SharedRead
_NOWAIT, _SKIP = LockOptions.NoWait, LockOptions.SkipLocked
# "Table hints", READPAST: it "can't be specified when the READ_COMMITTED_SNAPSHOT database option is
# set to ON" at READ COMMITTED; "include the READCOMMITTEDLOCK table hint in the query".  (Remarks
# there name ROWLOCK and READCOMMITTEDLOCK as hints of one group; programs on Azure use them together.)
_SKIPPING = "UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK"
# https://learn.microsoft.com/sql/t-sql/queries/hints-transact-sql-table
_ROW_LOCKS = {
    _FOR_UPDATE: "UPDLOCK, ROWLOCK",
    _FOR_UPDATE | _NOWAIT: "UPDLOCK, ROWLOCK, NOWAIT",
    _FOR_UPDATE | _SKIP: _SKIPPING,
    # READPAST under SNAPSHOT is error 650, and a row version does not show whether the row is
    # locked: so it is the stronger lock.
    _SHARED | _SKIP: _SKIPPING,
}
_BY_ROW_VERSIONS = frozenset({_SHARED, _SHARED | _NOWAIT, LockOptions.SnapshotRead})
_DIRTY = {LockOptions.NoLock: "WITH (NOLOCK)"}

# https://learn.microsoft.com/sql/relational-databases/system-stored-procedures/sp-getapplock-transact-sql
# A longer @Resource would be cut off, and be the lock of other keys too.
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
    -3: DeadlockDetected,  # chosen as the victim: nothing is undone
}
# "Optimized locking" (Azure SQL, SQL Server 2025): of rows that were changed, "the only lock held until
# end of transaction is the X lock on the TID resource", listed as XACT and without a table.
# The locks of rows are listed by hashes of their keys.  What would tell the hash of a row,
# %%lockres%%, is not documented, and Microsoft's own parser does not know it: so by table.
# https://learn.microsoft.com/sql/relational-databases/system-dynamic-management-views/sys-dm-tran-locks-transact-sql
_HOLDERS = text("""
    SELECT l.request_session_id, MAX(CASE WHEN l.resource_type = 'OBJECT' THEN 1 ELSE 0 END)
    FROM sys.dm_tran_locks AS l LEFT JOIN sys.partitions AS p
    ON p.hobt_id = l.resource_associated_entity_id
    WHERE l.resource_database_id = DB_ID() AND l.request_status = 'GRANT'
    AND l.request_session_id <> @@SPID
    AND (l.resource_type IN ('KEY', 'RID', 'PAGE', 'HOBT') AND p.object_id = OBJECT_ID(:name)
    AND l.request_mode IN ('U', 'X', 'UIX', 'BU', 'RangeS_U', 'RangeI_U', 'RangeI_X', 'RangeX_S',
    'RangeX_U', 'RangeX_X') OR l.resource_type = 'XACT' AND l.request_mode = 'X'
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
# "Active Secondaries: Readable Secondary Replicas", Benefits: "All queries that run against the
# secondary databases are automatically mapped to snapshot isolation transaction level, even when other
# transaction isolation levels are explicitly set.  Also, all locking hints are ignored."
# "DATABASEPROPERTYEX", Updateability: "READ_ONLY: Database supports data reads but not data
# modifications."  https://learn.microsoft.com/sql/t-sql/functions/databasepropertyex-transact-sql
_UPDATEABILITY = "SELECT CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS varchar(20))"
_WRITABLE = "sa_doclock.writable"
_TEMPORAL = "SELECT COUNT(*) FROM sys.tables WHERE temporal_type = 2"
_RESTORES_TIMEOUT = "mssql restores LOCK_TIMEOUT"
_SOME_SECONDS = 4.321  # no server has it as its own LOCK_TIMEOUT
_WITH_PARAMETER = select(literal(1, Integer))  # so that it is sent as a lock by its key is
_STATES = {"sleeping": IDLE, "running": ACTIVE, "suspended": ACTIVE, "runnable": ACTIVE}
_NEEDS_GRANT = (
    "the account needs GRANT VIEW SERVER STATE, from SQL Server 2022 on VIEW SERVER PERFORMANCE "
    "STATE, in Azure SQL VIEW DATABASE STATE"
)


class SQLServerMonitoring(LockMonitoring):
    # 262: "%ls permission denied in database '%.*ls'", VIEW DATABASE STATE in Azure SQL
    privilege_errors = {300: _NEEDS_GRANT, 297: _NEEDS_GRANT, 262: _NEEDS_GRANT}

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

    def waits(self, connection: Connection) -> Iterable[Wait]:
        connection.exec_driver_sql(_SHORT_TIMEOUT)
        for waiter, blocker, table, key, seconds in connection.execute(_WAITS):
            yield Wait(waiter, blocker, table, key, elapsed_seconds(seconds))

    def describe(
        self, connection: Connection, ids: Collection[int]
    ) -> Mapping[int, LockConnection]:
        return connections_by_id(connection.execute(_CONNECTIONS, {"ids": sorted(ids)}), _STATES)


class SQLServerLocks(LockStrategy):
    name = "mssql"
    levels = {
        # At the two others reads take locks as well, so what is read after the grant is current.
        _FOR_UPDATE: (READ_COMMITTED, *_STRICTER),
        # A reader that holds S(header) and waits for X(detail), and a writer that holds
        # X(detail) and waits for U to X(header), are error 1205.  Row versions wait for nobody.
        _SHARED: (SNAPSHOT, READ_COMMITTED, *_STRICTER),
        LockOptions.SnapshotRead: (SNAPSHOT,),
    }
    kept_levels = {_FOR_UPDATE: frozenset(_STRICTER)}
    queued = frozenset({_FOR_UPDATE})
    # with_for_update() compiles to nothing here, so only a hint locks.
    hints = {**{lock: f"WITH ({hints})" for lock, hints in _ROW_LOCKS.items()}, **_DIRTY}
    # "Table hints", FORCESEEK: "the query optimizer uses only an index seek operation as the access
    # path".  Without it a small table, or one of a long IN list, is scanned, and each row that the
    # scan passes is locked, and waited for.
    hints_by_key = {
        **{lock: f"WITH ({hints}, FORCESEEK)" for lock, hints in _ROW_LOCKS.items()},
        **_DIRTY,
    }
    candidate_hints = {
        _FOR_UPDATE | _NOWAIT: "WITH (NOWAIT)",
        _FOR_UPDATE | _SKIP: "WITH (READCOMMITTEDLOCK, READPAST)",
        _SHARED | _SKIP: "WITH (READCOMMITTEDLOCK, READPAST)",
    }
    # "Table hints", Remarks: "The table hints are ignored if the table isn't accessed by the query
    # plan.  This may be caused by the optimizer choosing not to access the table at all": a join to
    # a header over a trusted foreign key of which only the key is read.  And: "if a table has a
    # nonclustered index, and a SELECT statement using a lock hint is handled by a covering index, a
    # lock is acquired on the index key in the covering index rather than on the data row in the base
    # table", so two sessions with two access paths both get it.
    locks_what_is_read = True
    # https://learn.microsoft.com/sql/relational-databases/errors-events/database-engine-events-and-errors
    failures = {
        1222: LockNotAvailable,  # lock request time-out: only the statement is undone
        1205: DeadlockDetected,  # deadlock victim (the same number is a time-out on MySQL)
        3960: SnapshotConflict,  # update conflict under SNAPSHOT
        3961: SnapshotConflict,  # DDL of another transaction meanwhile
        3966: SnapshotConflict,  # the row versions had to make room: "Retry the transaction"
        # "Temporal tables": the times of a row's period "are based on the begin time of the
        # transaction itself", which may be older than the change that this one has waited for.
        13535: SnapshotConflict,
        # "Table hints", READUNCOMMITTED: "If you receive the error message 601 .. resolve it as you
        # would a deadlock error".
        601: SnapshotConflict,
    }
    refusals = {
        8622: (LockNotSupported, _NO_SEEK),
        # "Cannot use the ROW granularity hint on the table .. because locking at the specified
        # granularity is inhibited."  "Table hints", ROWLOCK: "can't be used with a table that has a
        # clustered columnstore index".
        651: (LockNotSupported, "the table has a clustered columnstore index, or locks no rows"),
        # "Transactions with Memory-Optimized Tables"; the hint, and SNAPSHOT as level of a session
        **dict.fromkeys((10794, 41332, 41368), (LockNotSupported, _NO_ROW_LOCKS)),
        # "You can only specify the READPAST lock in the READ COMMITTED or REPEATABLE READ .."
        650: (WrongIsolation, "SkipLocked needs READ COMMITTED or REPEATABLE READ"),
        3952: (LockNotSupported, _NO_SNAPSHOT),
        **dict.fromkeys((3953, 3954, 3956), (LockNotSupported, _IN_TRANSITION)),
        3951: (WrongIsolation, "SNAPSHOT was set after the transaction had started"),
    }
    rolls_back_transaction = requires_rollback = frozenset({1205, 3960, *_ENDS_TRANSACTION})
    # "SET XACT_ABORT", Remarks: "Depending upon the severity of the error, the entire transaction
    # may be rolled back even when SET XACT_ABORT is OFF."  No number tells: 245 (conversion) ends
    # it, 2627 does not, and in a trigger, where XACT_ABORT is ON by default, 2627 ends it too.  The
    # driver begins the next transaction by itself, so @@TRANCOUNT is 1 as before.
    error_ends_unseen = True
    # By the page "SET TRANSACTION ISOLATION LEVEL", Remarks, the level can be changed at any time in
    # a transaction, but for a change to SNAPSHOT.
    changes_level_at_once = True
    monitoring = SQLServerMonitoring()
    max_parameters = 2_000  # of 2100: some drivers add their own
    rollback_noise = frozenset({3903})  # ROLLBACK without BEGIN: FreeTDS sends it regardless

    def levels_for(self, lock: LockOptions) -> tuple[str, ...]:
        if lock == _SHARED | _SKIP:
            return (READ_COMMITTED, REPEATABLE_READ)
        levels = super().levels_for(lock)
        return levels[:2] if lock & ~LockOptions.NoKey == _FOR_UPDATE | _SKIP else levels

    def row_lock(self, lock: LockOptions, level: str | None) -> LockOptions:
        if base_of(lock) is _SHARED:
            if level == SNAPSHOT:
                return LockOptions.None_
            return lock & ~_SHARED | _FOR_UPDATE  # never weaker than asked
        return LockOptions.None_ if base_of(lock) is LockOptions.SnapshotRead else lock

    def note_server(self, connection: Connection) -> None:
        # A temporal table that comes later is found by the next process.
        temporal = int(connection.exec_driver_sql(_TEMPORAL).scalar_one())
        self.begins_at_once = temporal > 0
        # SQLAlchemy asks sys.dm_exec_sessions for it, where sys.system_views has that name.  Without
        # it the pool would close each connection whose level was set.  "SET TRANSACTION ISOLATION
        # LEVEL": "READ COMMITTED .. This option is the SQL Server default."
        if connection.dialect.default_isolation_level is None:
            connection.dialect.default_isolation_level = "READ COMMITTED"

    def begin_now(self, connection: Connection) -> None:
        # A driver begins the next transaction with the end of the last one, maybe hours ago.  ODBC
        # Driver 18 sends no commit for a transaction in which nothing was sent.
        connection.exec_driver_sql("DECLARE @doclock int")
        connection.connection.commit()

    def begin(self, connection: Connection, lock: LockOptions, seconds: float | None) -> None:
        self._refuse_read_only(connection, lock)

    def join(
        self,
        connection: Connection,
        lock: LockOptions,
        seconds: float | None,
        level: str | None,
        opened_for: LockOptions | None,
        header: Table | None,
    ) -> bool:
        if level == "READ UNCOMMITTED" and base_of(lock) in self.levels:
            raise WrongIsolation(
                "the transaction is open at READ UNCOMMITTED, where details are read that another "
                "transaction has not committed; end it, or set READ COMMITTED"
            )
        opens = super().join(connection, lock, seconds, level, opened_for, header)
        self._refuse_read_only(connection, lock)
        return opens

    def check_adopted(self, connection: Connection, lock: LockOptions, table: Table) -> None:
        self._refuse_read_only(connection, lock)

    def _refuse_read_only(self, connection: Connection, lock: LockOptions) -> None:
        if lock in _BY_ROW_VERSIONS:
            return
        writable = connection.info.get(_WRITABLE)  # it is kept with the connection to the server
        if writable is None:
            found = connection.exec_driver_sql(_UPDATEABILITY).scalar_one()
            writable = connection.info[_WRITABLE] = found != "READ_ONLY"
        if not writable:
            raise LockNotSupported(_READ_ONLY)

    def check_autocommit(self, connection: Connection) -> None:
        driver: Any = connection.connection.dbapi_connection
        # the "autocommit" of pymssql is a method, and its state is here
        state = getattr(driver, "autocommit_state", None)
        if driver.autocommit if state is None else state:
            raise LockNotSupported(AUTOCOMMIT)

    def mark_transaction(self, connection: Connection) -> object:
        return connection.exec_driver_sql(_TRANSACTION_ID).scalar_one()

    def has_mark(self, connection: Connection, mark: object) -> bool:
        ((transaction_id,),) = ask_driver(connection, _TRANSACTION_ID)
        return bool(transaction_id == mark)

    def lower_deadlock_priority(self, connection: Connection) -> None:
        # It stays with the connection.  Every account may read the row of its own session.
        old = connection.exec_driver_sql(_DEADLOCK_PRIORITY).scalar_one()
        on_return(connection, ExecuteStatement(f"SET DEADLOCK_PRIORITY {int(old)}"))
        connection.exec_driver_sql("SET DEADLOCK_PRIORITY LOW")

    def waiting(
        self, connection: Connection, lock: LockOptions, seconds: float | None
    ) -> AbstractContextManager[None]:
        if seconds is None:
            return nullcontext()
        sends_batch = connection.dialect.driver in _PARAMETERS_BY_SERVER
        if sends_batch and self._restores_timeout(connection):
            return _lock_timeout_in_batch(connection, seconds)
        # It is the connection's, and would go back to the pool with it.
        return connection_setting(
            connection, _LOCK_TIMEOUT, "SET LOCK_TIMEOUT", milliseconds(seconds)
        )

    def _restores_timeout(self, connection: Connection) -> bool:
        """Return whether the server restores LOCK_TIMEOUT at the end of a batch with parameters.

        "SET statements" says so of sp_executesql and EXECUTE, and nothing of sp_prepexec.  False
        too where it cannot be asked.
        """
        if _RESTORES_TIMEOUT not in self.findings:
            with suppress(LockNotSupported, SQLAlchemyError), self.asking(connection) as asked:
                self.findings[_RESTORES_TIMEOUT] = _restores_lock_timeout(asked)
        return bool(self.findings.get(_RESTORES_TIMEOUT))

    def take_key(
        self, connection: Connection, key: str, lock: LockOptions, seconds: float | None
    ) -> type[LockFailed] | None:
        # Without @LockTimeout it is @@LOCK_TIMEOUT, as for every other lock.
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
            raise LockNotSupported(f"sp_getapplock has answered {answer}: the call was refused")
        return _REFUSED_BY_VALUE.get(answer)

    def longest_wait(self, connection: Connection) -> float | None:
        # in milliseconds, -1 for ever
        limit = int(connection.exec_driver_sql(_LOCK_TIMEOUT).scalar_one())
        return None if limit < 0 else limit / 1000

    def native_code(self, orig: BaseException) -> NativeCode | None:
        # pymssql's, and that of its lower layer, which its rollback() may raise
        for number in (*orig.args[:1], getattr(orig, "number", None)):
            if isinstance(number, int):
                return number
        if type(orig).__module__.partition(".")[0] == "mssql_python":
            return next((code for text, code in _TEXTS.items() if text in str(orig)), None)
        return self._number_in_text(orig)

    def _number_in_text(self, orig: BaseException) -> NativeCode | None:
        numbers = [int(n) for text in orig.args for n in _NUMBER_IN_TEXT.findall(str(text))]
        known = self.failures.keys() | self.refusals.keys() | self.rollback_noise
        return next((n for n in numbers if n in known), numbers[0] if numbers else None)


def _restores_lock_timeout(own: Connection) -> bool:
    """Return whether LOCK_TIMEOUT is as before after a batch that has set it."""
    old = own.exec_driver_sql(_LOCK_TIMEOUT).scalar_one()
    with _lock_timeout_in_batch(own, _SOME_SECONDS):
        own.execute(_WITH_PARAMETER)
    return bool(own.exec_driver_sql(_LOCK_TIMEOUT).scalar_one() == old)


def _lock_timeout_in_batch(connection: Connection, seconds: float) -> AbstractContextManager[None]:
    # What sp_executesql and sp_prepexec run is a batch of its own, at whose end the server puts
    # SET options back: https://learn.microsoft.com/sql/t-sql/statements/set-statements-transact-sql
    limit = f"SET LOCK_TIMEOUT {milliseconds(seconds)}; "

    def rewrite(statement: str, parameters: Any) -> str:
        if parameters:
            return limit + statement
        # Without parameters the driver sends the text as it is, in the connection's own batch.
        quoted = (limit + statement).replace("'", "''")
        return f"EXEC sp_executesql N'{quoted}'"

    # Every SELECT of the block: also the one that looks for the rows of a join, and the reader in a
    # snapshot, which waits for a change of the table's definition (Sch-M).
    return rewritten_statements(connection, rewrite, "SELECT")
