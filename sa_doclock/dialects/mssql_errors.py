"""The errors of SQL Server: their numbers, and how to find a number in a driver's error.

The texts are those of "Database engine events and errors":
https://learn.microsoft.com/sql/relational-databases/errors-events/database-engine-events-and-errors
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..errors import (
    DeadlockDetected,
    LockNotAvailable,
    LockNotSupported,
    SnapshotConflict,
    WrongIsolation,
)
from .error_codes import Ends, ErrorCode, ErrorCodes, EveryError, NativeCode

# pyodbc has the server's number only in its text, as ".. (1222) (SQLExecDirectW)", and further
# records as "; [state] .. (3621)"; the texts in between may contain anything
_NUMBER_IN_TEXT = re.compile(r"\((\d+)\)(?= \(SQL\w+\)|; \[|$)")

_NO_SNAPSHOT = (
    "this database does not allow snapshot isolation, and SharedRead and SnapshotRead need it. "
    "Run op.enable_snapshot_isolation() (see docs/mssql.md)"
)
_NO_ROW_LOCKS = "the table is memory-optimized, and SQL Server does not lock its rows"
_IN_TRANSITION = (
    "an ALTER DATABASE is switching snapshot isolation on or off in this database. "
    "Try again when it has ended"
)
_NO_SEEK = 8622
_WHY_NO_SEEK = (
    "SQL Server found no index in which to look the row up by its key (8622), and a scan would lock "
    "other rows too: no index begins with the mapped primary key, or the mapped type is not the "
    "column's (Unicode for a varchar column of a SQL_ collation), or the class is mapped on a view and "
    "not on its base table, or the table is a clustered columnstore; use the type of the column in the "
    "mapping, or create the index (see docs/mssql.md, Keys)"
)
_NEEDS_GRANT = (
    "the account needs GRANT VIEW SERVER STATE, from SQL Server 2022 on VIEW SERVER PERFORMANCE "
    "STATE, in Azure SQL VIEW DATABASE STATE"
)
# mssql-python gives no number: for this driver alone the text decides, which is English if the
# login's language is.  Each text identifies one message of the server.
TEXTS: Mapping[str, int] = {
    "permission denied in database": 262,
    "The user does not have permission to perform this action": 297,
    "permission was denied on object 'server'": 300,
    "Could not continue scan with NOLOCK due to data movement": 601,
    "You can only specify the READPAST lock": 650,
    "because locking at the specified granularity is inhibited": 651,
    "cannot obtain a LOCK resource at this time": 1204,
    "was deadlocked on": 1205,
    "Lock request time out period exceeded": 1222,
    "The transaction ended in the trigger": 3609,
    "An error was raised during trigger execution": 3616,
    "has no corresponding BEGIN TRANSACTION": 3903,
    "Failed to acquire necessary locks during commit": 3940,
    "because of the availability replica config/state change": 3948,
    "but the transaction did not start in snapshot isolation": 3951,
    "because snapshot isolation is not allowed in this database": 3952,
    "because the database was not recovered when the current transaction": 3953,
    "because the ALTER DATABASE command that disallows snapshot isolation": 3954,
    "because the ALTER DATABASE command which enables snapshot isolation": 3956,
    "Transaction aborted when accessing versioned row": 3958,  # and 3907, 3949
    "aborted due to update conflict": 3960,
    "the object accessed by the statement has been modified by a DDL statement": 3961,
    "Transaction is rolled back when accessing version store": 3966,
    "Uncommittable transaction is detected at the end of the batch": 3998,
    "could not produce a query plan because of the hints": _NO_SEEK,
    "not supported with memory optimized tables": 10794,
    "because transaction time was earlier than period start time": 13535,
    "Memory optimized tables and natively compiled modules cannot be accessed": 41332,
    "Accessing memory optimized tables using the READ COMMITTED isolation level": 41368,
}
"""A part of the server's text for every number in the table."""

# Each ends the transaction, as the server's message says, and asks to run it again.
_CONFLICT = ErrorCode(SnapshotConflict, ends=Ends.TRANSACTION)


class SQLServerErrors(ErrorCodes):
    codes = {
        # of the views of locks, which not every account may read; 262: VIEW DATABASE STATE (Azure
        # SQL)
        **dict.fromkeys((300, 297, 262), ErrorCode(monitoring=_NEEDS_GRANT)),
        # "cannot obtain a LOCK resource at this time": the server's memory for locks is full.
        1204: ErrorCode(LockNotAvailable),
        1222: ErrorCode(LockNotAvailable),  # lock request time-out: only the statement is undone
        # deadlock victim (the same number is a time-out on MySQL)
        1205: ErrorCode(DeadlockDetected, ends=Ends.TRANSACTION),
        3960: _CONFLICT,  # update conflict under SNAPSHOT
        3961: _CONFLICT,  # "Snapshot isolation transaction failed": DDL of another transaction
        # "Transaction is rolled back when accessing version store": versions were removed for space
        3966: _CONFLICT,
        # "Transaction aborted when accessing versioned row": the version that the snapshot needs is
        # gone or not readable; in a persistent version store, on a readable secondary, in tempdb
        **dict.fromkeys((3907, 3949, 3958), _CONFLICT),
        # "The transaction was terminated": the replica changed, and rows of the snapshot are
        # deleted
        3948: _CONFLICT,
        # "Temporal tables": the times of a row's period "are based on the begin time of the
        # transaction itself", which may be before the change for which this transaction waited.
        13535: ErrorCode(SnapshotConflict),
        # "Table hints", READUNCOMMITTED: "error message 601 .. resolve it as you would a deadlock
        # error"
        601: ErrorCode(SnapshotConflict),
        3609: ErrorCode(ends=Ends.TRANSACTION),  # "The transaction ended in the trigger."
        # ".. the user transaction, if any, has been rolled back"
        3616: ErrorCode(ends=Ends.TRANSACTION),
        # ".. and the transaction was rolled back": locks taken by the commit
        3940: ErrorCode(ends=Ends.TRANSACTION),
        # "Uncommittable transaction is detected .. The transaction is rolled back."
        3998: ErrorCode(ends=Ends.TRANSACTION),
        # ROLLBACK without BEGIN: FreeTDS sends it regardless
        3903: ErrorCode(ends=Ends.NOTHING_LEFT),
        # "Table hints", FORCESEEK: "If FORCESEEK causes no plan to be found, error 8622 is returned."
        _NO_SEEK: ErrorCode(in_lock=LockNotSupported, why=_WHY_NO_SEEK),
        # "Cannot use the ROW granularity hint on the table .. because locking at the specified
        # granularity is inhibited": ROWLOCK "can't be used with a table that has a clustered
        # columnstore index".
        651: ErrorCode(
            in_lock=LockNotSupported,
            why="the table has a clustered columnstore index, or its options do not allow row locks",
        ),
        # "Transactions with Memory-Optimized Tables"; the hint, and SNAPSHOT as level of a session
        **dict.fromkeys(
            (10794, 41332, 41368), ErrorCode(in_lock=LockNotSupported, why=_NO_ROW_LOCKS)
        ),
        # "You can only specify the READPAST lock in the READ COMMITTED or REPEATABLE READ .."
        650: ErrorCode(
            in_lock=WrongIsolation,
            why="SkipLocked needs a transaction at READ COMMITTED or REPEATABLE READ",
        ),
        3952: ErrorCode(in_lock=LockNotSupported, why=_NO_SNAPSHOT),
        **dict.fromkeys(
            (3953, 3954, 3956), ErrorCode(in_lock=LockNotSupported, why=_IN_TRANSITION)
        ),
        3951: ErrorCode(
            in_lock=WrongIsolation,
            why="the transaction had started before its isolation level was set to SNAPSHOT",
        ),
    }
    # "SET XACT_ABORT", Remarks: "Depending upon the severity of the error, the entire transaction
    # may be rolled back even when SET XACT_ABORT is OFF."  No number shows it: 245 (conversion)
    # ends the transaction, 2627 does not, but it does in a trigger, where XACT_ABORT is ON by
    # default.  The driver begins the next transaction by itself, so @@TRANCOUNT is 1 as before.
    every_error = EveryError.MAY_END

    def native_code(self, orig: BaseException) -> NativeCode | None:
        # the error of pymssql, or of its lower layer, which its rollback() may raise
        for number in (*orig.args[:1], getattr(orig, "number", None)):
            if isinstance(number, int):
                return number
        if type(orig).__module__.partition(".")[0] == "mssql_python":
            return next((code for text, code in TEXTS.items() if text in str(orig)), None)
        numbers = [int(n) for text in orig.args for n in _NUMBER_IN_TEXT.findall(str(text))]
        return next((n for n in numbers if n in self.codes), numbers[0] if numbers else None)
