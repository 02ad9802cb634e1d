"""SQL Server 2016 and later: pyodbc, aioodbc, pymssql.

Never run against a real server by this project's own tests: see docs/mssql.md for the
evidence behind each claim.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sqlalchemy import Connection, Table, bindparam, text

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
from .base import AUTOCOMMIT, READ_COMMITTED, SNAPSHOT, LockMonitoring, LockStrategy, NativeCode
from .connection import connection_setting
from .key_names import short_name
from .locking import quoted_name
from .monitoring import connections_by_id, elapsed_seconds
from .statement_rewrite import rewritten_statements

# pyodbc keeps the server's number only in its text, as ".. (1222) (SQLExecDirectW)",
# further records as "; [state] .. (3621)"; the texts between may have any content
_NUMBER_IN_TEXT = re.compile(r"\((\d+)\)(?= \(SQL\w+\)|; \[|$)")

_NO_SNAPSHOT = (
    "the database does not allow snapshot isolation, which readers need here; "
    "run op.enable_snapshot_isolation() (see docs/mssql.md)"
)
_IN_TRANSITION = (
    "snapshot isolation is being switched on or off in this database; "
    "try again when ALTER DATABASE has ended"
)
_LOCK_TIMEOUT = "SELECT @@LOCK_TIMEOUT"
_DEADLOCK_PRIORITY = "SELECT deadlock_priority FROM sys.dm_exec_sessions WHERE session_id = @@SPID"

# Not pymssql, which writes the parameters into the text: that is no batch of its own.
_PARAMETERS_BY_SERVER = frozenset({"pyodbc", "aioodbc", "mssqlpython"})
_FOR_UPDATE, _SHARED = LockOptions.ForUpdate, LockOptions.SharedRead
_NOWAIT, _SKIP = LockOptions.NoWait, LockOptions.SkipLocked

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
# The locks of rows are listed by hashes of their keys.  What would tell the hash of a row,
# %%lockres%%, is not documented, and Microsoft's own parser does not know it: so by table.
# https://learn.microsoft.com/sql/relational-databases/system-dynamic-management-views/sys-dm-tran-locks-transact-sql
_HOLDERS = text("""
    SELECT l.request_session_id, MAX(CASE WHEN l.resource_type = 'OBJECT' THEN 1 ELSE 0 END)
    FROM sys.dm_tran_locks AS l LEFT JOIN sys.partitions AS p
    ON p.hobt_id = l.resource_associated_entity_id
    WHERE l.resource_database_id = DB_ID() AND l.request_status = 'GRANT'
    AND l.request_session_id <> @@SPID
    AND (l.resource_type IN ('KEY', 'RID', 'PAGE') AND p.object_id = OBJECT_ID(:name)
    AND l.request_mode IN ('U', 'X') OR l.resource_type = 'OBJECT'
    AND l.resource_associated_entity_id = OBJECT_ID(:name)
    AND l.request_mode IN ('S', 'SIX', 'U', 'X', 'Sch-M'))
    GROUP BY l.request_session_id""")
_CONNECTIONS = text("""
    SELECT s.session_id, s.login_name, s.program_name, s.status,
    (SELECT MAX(DATEDIFF(second, a.transaction_begin_time, SYSDATETIME()))
    FROM sys.dm_tran_session_transactions AS t JOIN sys.dm_tran_active_transactions AS a
    ON a.transaction_id = t.transaction_id WHERE t.session_id = s.session_id),
    COALESCE(running.text, latest.text)
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
    CASE WHEN l.resource_type IN ('KEY', 'RID', 'APPLICATION') THEN l.resource_description END,
    w.wait_duration_ms / 1000.0
    FROM sys.dm_os_waiting_tasks AS w
    JOIN sys.dm_tran_locks AS l ON l.lock_owner_address = w.resource_address
    LEFT JOIN sys.partitions AS p ON p.hobt_id = l.resource_associated_entity_id
    WHERE w.blocking_session_id IS NOT NULL AND w.blocking_session_id <> w.session_id""")
_SHORT_TIMEOUT = "SET LOCK_TIMEOUT 500"
_STATES = {"sleeping": IDLE, "running": ACTIVE, "suspended": ACTIVE, "runnable": ACTIVE}
_NEEDS_GRANT = (
    "the account needs GRANT VIEW SERVER STATE, from SQL Server 2022 on VIEW SERVER PERFORMANCE "
    "STATE"
)


class SQLServerMonitoring(LockMonitoring):
    privilege_errors = {300: _NEEDS_GRANT, 297: _NEEDS_GRANT}

    def connection_id(self, connection: Connection) -> int | None:
        cursor: Any = connection.connection.cursor()  # no driver knows it by itself
        try:
            cursor.execute("SELECT @@SPID")
            return int(cursor.fetchone()[0])
        finally:
            cursor.close()

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
        _FOR_UPDATE: (READ_COMMITTED,),
        # A reader that holds S(header) and waits for X(detail), and a writer that holds
        # X(detail) and waits for U to X(header), are error 1205.  Row versions wait for nobody.
        _SHARED: (SNAPSHOT, READ_COMMITTED),
        LockOptions.SnapshotRead: (SNAPSHOT,),
    }
    queued = frozenset({_FOR_UPDATE})
    # with_for_update() compiles to nothing here, so only a hint locks.
    # https://learn.microsoft.com/sql/t-sql/queries/hints-transact-sql-table
    hints = {
        _FOR_UPDATE: "WITH (UPDLOCK, ROWLOCK)",
        _FOR_UPDATE | _NOWAIT: "WITH (UPDLOCK, ROWLOCK, NOWAIT)",
        _FOR_UPDATE | _SKIP: "WITH (UPDLOCK, ROWLOCK, READPAST)",
        # READPAST under SNAPSHOT is error 650, and a row version does not show whether the row
        # is locked: so it is the stronger lock.
        _SHARED | _SKIP: "WITH (UPDLOCK, ROWLOCK, READPAST)",
        LockOptions.NoLock: "WITH (NOLOCK)",
    }
    # https://learn.microsoft.com/sql/relational-databases/errors-events/database-engine-events-and-errors
    failures = {
        1222: LockNotAvailable,  # lock request time-out: only the statement is undone
        1205: DeadlockDetected,  # deadlock victim (the same number is a time-out on MySQL)
        3960: SnapshotConflict,  # update conflict under SNAPSHOT
    }
    refusals = {
        3952: (LockNotSupported, _NO_SNAPSHOT),
        **dict.fromkeys((3953, 3954, 3956), (LockNotSupported, _IN_TRANSITION)),
        3951: (WrongIsolation, "SNAPSHOT was set after the transaction had started"),
    }
    rolls_back_transaction = requires_rollback = frozenset({1205, 3960})
    monitoring = SQLServerMonitoring()
    max_parameters = 2_000  # of 2100: some drivers add their own
    rollback_noise = frozenset({3903})  # ROLLBACK without BEGIN: FreeTDS sends it regardless

    def levels_for(self, lock: LockOptions) -> tuple[str, ...]:
        if lock == _SHARED | _SKIP:
            return (READ_COMMITTED,)
        return super().levels_for(lock)

    def row_lock(self, lock: LockOptions, level: str | None) -> LockOptions:
        if base_of(lock) is _SHARED:
            if level == SNAPSHOT:
                return LockOptions.None_
            return lock & ~_SHARED | _FOR_UPDATE  # never weaker than asked
        return LockOptions.None_ if base_of(lock) is LockOptions.SnapshotRead else lock

    def check_autocommit(self, connection: Connection) -> None:
        driver: Any = connection.connection.dbapi_connection
        # the "autocommit" of pymssql is a method, and its state is here
        state = getattr(driver, "autocommit_state", None)
        if driver.autocommit if state is None else state:
            raise LockNotSupported(AUTOCOMMIT)

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
        if connection.dialect.driver in _PARAMETERS_BY_SERVER:
            return _lock_timeout_in_batch(connection, seconds)
        # It is the connection's, and would go back to the pool with it.
        return connection_setting(
            connection, _LOCK_TIMEOUT, "SET LOCK_TIMEOUT", milliseconds(seconds)
        )

    def take_key(
        self, connection: Connection, key: str, lock: LockOptions, seconds: float | None
    ) -> type[LockFailed] | None:
        # Without @LockTimeout it is @@LOCK_TIMEOUT, as for every other lock.
        wait = 0.0 if _NOWAIT in lock else seconds
        statement = _TAKE_KEY.format(
            mode="Exclusive" if base_of(lock) is _FOR_UPDATE else "Shared",
            limit="" if wait is None else f", @LockTimeout = {milliseconds(wait)}",
        )
        name = short_name(key, _LONGEST_NAME)
        answer = int(connection.execute(text(statement), {"name": name}).scalar_one())
        if answer < 0 and answer not in _REFUSED_BY_VALUE:  # -999
            raise LockNotSupported(f"sp_getapplock has answered {answer}: the call was refused")
        return _REFUSED_BY_VALUE.get(answer)

    def longest_wait(self, connection: Connection) -> float | None:
        # in milliseconds, -1 for ever
        limit = int(connection.exec_driver_sql(_LOCK_TIMEOUT).scalar_one())
        return None if limit < 0 else limit / 1000

    def native_code(self, orig: BaseException) -> NativeCode | None:
        if orig.args and isinstance(orig.args[0], int):
            return orig.args[0]  # pymssql
        numbers = [int(n) for text in orig.args for n in _NUMBER_IN_TEXT.findall(str(text))]
        known = self.failures.keys() | self.refusals.keys() | self.rollback_noise
        return next((n for n in numbers if n in known), numbers[0] if numbers else None)


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

    return rewritten_statements(connection, rewrite, "UPDLOCK")
