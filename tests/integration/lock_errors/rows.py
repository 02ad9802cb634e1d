"""The tables of docs/errors.md: an error, the remaining state of the transaction, the remedy.

Each row is a test of this folder, on a real server:
tests/integration/lock_errors/test_lock_errors.py causes the error in the row's situation, and
checks the row.  SQL Server's rows are tested in test_mssql.py.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sa_doclock import (
    DeadlockDetected,
    DocLockError,
    LockNotAvailable,
    LockNotSupported,
    SnapshotConflict,
    WrongIsolation,
)


class Next(enum.Enum):
    """The result of the next statement after a failed one."""

    SAME = enum.auto()  # runs in the same transaction: its writes and locks are intact
    REFUSED = enum.auto()  # by the server; the locks are released
    NEW = enum.auto()  # runs in a new transaction: the writes are lost


class Left(enum.Enum):
    """The rest of the transaction that the server keeps, in words and as the tests find it."""

    REST = "all but this statement"
    ABORTED = "aborted"
    GONE = "nothing"
    UNKNOWN = "not known: roll back"
    SNAPSHOT = "its reads"

    @property
    def next_statement(self) -> Next:
        """The server's reaction to the next statement, without a savepoint."""
        return {Left.ABORTED: Next.REFUSED, Left.GONE: Next.NEW}.get(self, Next.SAME)

    @property
    def savepoint_helps(self) -> bool:
        """Return whether a rollback to the savepoint restores the state before it."""
        return self is not Left.GONE


class Where(enum.Enum):
    """The program's action that fails."""

    LOCK = "lock"
    STATEMENT = "statement"
    FLUSH = "flush"
    COMMIT = "commit"


class Do(NamedTuple):
    """The advice for the program or its operator."""

    words: str
    retryable: bool


RETRY = Do("", retryable=True)  # as in the page's first table
LIMIT = Do("try again later; it is a limit for whole statements", retryable=True)
PRIMARY = Do("lock on the primary, or read with SnapshotRead", retryable=False)
CHANGE = Do("change the statement: the entity alone, EXISTS in place of a join", retryable=False)

LOCK, STATEMENT, FLUSH, COMMIT = Where
WRITES = (STATEMENT, FLUSH)


class Row(NamedTuple):
    number: int | str
    name: str
    error: type[DocLockError]
    situation: str
    when: str
    where: tuple[Where, ...]
    left: Left
    do: Do
    columns: tuple[str, ...] = ()  # of the test matrix; empty: all columns of the database


POSTGRESQL = (
    Row(
        "55P03",
        "lock_not_available",
        LockNotAvailable,
        "nowait",
        "NoWait, or `lock_timeout=0`",
        (LOCK,),
        Left.ABORTED,
        RETRY,
    ),
    Row(
        "55P03",
        "lock_not_available",
        LockNotAvailable,
        "lock_timeout",
        "`lock_timeout=` has passed",
        (LOCK,),
        Left.ABORTED,
        RETRY,
    ),
    Row(
        "55P03",
        "lock_not_available",
        LockNotAvailable,
        "own limit",
        "the server's `lock_timeout` has passed",
        (LOCK, *WRITES),
        Left.ABORTED,
        RETRY,
    ),
    Row(
        "57014",
        "query_canceled",
        LockNotAvailable,
        "statement limit",
        "`statement_timeout` has ended the wait",
        (LOCK,),
        Left.ABORTED,
        LIMIT,
    ),
    Row(
        "57014",
        "query_canceled",
        LockNotAvailable,
        "cancelled",
        "`pg_cancel_backend()` has ended the wait",
        (LOCK,),
        Left.ABORTED,
        Do("ask the administrator why, and try again later", retryable=True),
    ),
    Row(
        "40P01",
        "deadlock_detected",
        DeadlockDetected,
        "deadlock",
        "a circle of waits, after the server's `deadlock_timeout` (1 s)",
        (LOCK, *WRITES),
        Left.ABORTED,
        RETRY,
    ),
    Row(
        "0A000_RevalidateCachedQuery",
        "cached plan",
        SnapshotConflict,
        "altered, prepared",
        "DDL has changed the columns of a statement that the driver has prepared",
        (LOCK, STATEMENT),
        Left.ABORTED,
        RETRY,
    ),
    Row(
        "40001",
        "serialization_failure",
        SnapshotConflict,
        "changed",
        "at REPEATABLE READ or SERIALIZABLE, of a row that another has changed",
        WRITES,
        Left.ABORTED,
        RETRY,
    ),
    Row(
        "40001",
        "serialization_failure",
        SnapshotConflict,
        "not serializable",
        "at SERIALIZABLE, of reads that another's writes contradict",
        (COMMIT,),
        Left.GONE,
        RETRY,
    ),
    Row(
        "25006",
        "read_only_sql_transaction",
        LockNotSupported,
        "read-only transaction",
        "a READ ONLY transaction, or a hot standby; SharedRead too",
        (LOCK,),
        Left.ABORTED,
        PRIMARY,
    ),
    Row(
        "0A000",
        "feature_not_supported",
        LockNotSupported,
        "no such lock",
        "a lock on rows that belong to no one table: the optional side of an outer join, ...",
        (LOCK,),
        Left.ABORTED,
        CHANGE,
    ),
)

_DEADLOCK = Row(
    1213,
    "ER_LOCK_DEADLOCK",
    DeadlockDetected,
    "deadlock",
    "a circle of waits, at once",
    (LOCK, *WRITES),
    Left.GONE,
    RETRY,
)
_READ_ONLY = (
    Row(
        1792,
        "ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION",
        LockNotSupported,
        "read-only transaction",
        "ForUpdate in a READ ONLY transaction",
        (LOCK,),
        Left.REST,
        PRIMARY,
    ),
    Row(
        1290,
        "ER_OPTION_PREVENTS_STATEMENT",
        LockNotSupported,
        "read-only server",
        "ForUpdate on a server with `read_only`",
        (LOCK,),
        Left.REST,
        PRIMARY,
    ),
)
_NO_INDEX = Row(
    1176,
    "ER_KEY_DOES_NOT_EXITS",
    LockNotSupported,
    "no index for the key",
    "`get_entities()` of a class whose mapped key is neither the PRIMARY KEY nor a unique index",
    (LOCK,),
    Left.REST,
    Do("give the table that key, or lock one document at a time", retryable=False),
)

MYSQL = (
    Row(
        3572,
        "ER_LOCK_NOWAIT",
        LockNotAvailable,
        "nowait",
        "NoWait, or `lock_timeout=0`",
        (LOCK,),
        Left.REST,
        RETRY,
    ),
    Row(
        3024,
        "ER_QUERY_TIMEOUT",
        LockNotAvailable,
        "lock_timeout",
        "`lock_timeout=` has passed; of a set, or under 0.25 s, `.orig` is the 3572 of a last try",
        (LOCK,),
        Left.REST,
        RETRY,
    ),
    Row(
        3024,
        "ER_QUERY_TIMEOUT",
        LockNotAvailable,
        "statement limit",
        "`max_execution_time` has ended the wait; `.orig` as above",
        (LOCK,),
        Left.REST,
        LIMIT,
    ),
    Row(
        1205,
        "ER_LOCK_WAIT_TIMEOUT",
        LockNotAvailable,
        "own limit",
        "`innodb_lock_wait_timeout` has passed",
        (LOCK, *WRITES),
        Left.REST,
        RETRY,
    ),
    _DEADLOCK,
    Row(
        3058,
        "ER_USER_LOCK_DEADLOCK",
        DeadlockDetected,
        "deadlock of names",
        "a circle of [named locks](named-locks.md), at once",
        (LOCK,),
        Left.REST,
        RETRY,
    ),
    *_READ_ONLY,
    _NO_INDEX,
    Row(
        1412,
        "ER_TABLE_DEF_CHANGED",
        SnapshotConflict,
        "altered, snapshot",
        "DDL has changed the table since the snapshot was taken",
        (STATEMENT,),
        Left.REST,
        RETRY,
    ),
)

MARIADB = (
    Row(
        1205,
        "ER_LOCK_WAIT_TIMEOUT",
        LockNotAvailable,
        "nowait",
        "NoWait, or `lock_timeout=0`",
        (LOCK,),
        Left.REST,
        RETRY,
    ),
    Row(
        1205,
        "ER_LOCK_WAIT_TIMEOUT",
        LockNotAvailable,
        "whole lock_timeout",
        "`lock_timeout=` of whole seconds has passed",
        (LOCK,),
        Left.REST,
        RETRY,
    ),
    Row(
        1969,
        "ER_STATEMENT_TIMEOUT",
        LockNotAvailable,
        "lock_timeout",
        "a fractional `lock_timeout=` has passed; of a set, or under 0.25 s, `.orig` is a last try's 1205",
        (LOCK,),
        Left.REST,
        RETRY,
    ),
    Row(
        1969,
        "ER_STATEMENT_TIMEOUT",
        LockNotAvailable,
        "statement limit",
        "`max_statement_time` has ended the wait; `.orig` as above",
        (LOCK,),
        Left.REST,
        LIMIT,
    ),
    Row(
        1205,
        "ER_LOCK_WAIT_TIMEOUT",
        LockNotAvailable,
        "own limit",
        "`innodb_lock_wait_timeout` has passed",
        (LOCK, *WRITES),
        Left.REST,
        RETRY,
    ),
    _DEADLOCK,
    Row(
        1020,
        "ER_CHECKREAD",
        SnapshotConflict,
        "changed",
        "at REPEATABLE READ with `innodb_snapshot_isolation` (the default since 11.6.2), of a row "
        "that another has changed",
        WRITES,
        Left.GONE,
        RETRY,
    ),
    *_READ_ONLY,
    _NO_INDEX,
    Row(
        1412,
        "ER_TABLE_DEF_CHANGED",
        SnapshotConflict,
        "altered, snapshot",
        "DDL has changed the table since the snapshot was taken",
        (STATEMENT,),
        Left.REST,
        RETRY,
    ),
)

SQLITE = (
    Row(
        5,
        "SQLITE_BUSY",
        LockNotAvailable,
        "nowait",
        "NoWait, or `lock_timeout=0`, while another writes in the file",
        (LOCK,),
        Left.REST,
        RETRY,
    ),
    Row(
        5,
        "SQLITE_BUSY",
        LockNotAvailable,
        "lock_timeout",
        "`lock_timeout=` has passed",
        (LOCK,),
        Left.REST,
        RETRY,
    ),
    Row(
        5,
        "SQLITE_BUSY",
        LockNotAvailable,
        "own limit",
        "the connection's `timeout` has passed",
        (LOCK, *WRITES),
        Left.REST,
        RETRY,
    ),
    Row(
        5,
        "SQLITE_BUSY",
        LockNotAvailable,
        "readers",
        "in rollback-journal mode: readers are still there when the `timeout` has passed",
        (COMMIT,),
        Left.GONE,
        Do("run the whole transaction again; switch the file to WAL", retryable=True),
        ("sqlite-journal",),
    ),
    Row(
        6,
        "SQLITE_LOCKED",
        LockNotAvailable,
        "shared cache",
        "another connection of a shared cache; it never waits",
        (LOCK, *WRITES),
        Left.REST,
        Do("try again later; do without the shared cache", retryable=True),
    ),
    Row(
        517,
        "SQLITE_BUSY_SNAPSHOT",
        SnapshotConflict,
        "changed",
        "in WAL mode: another has written in the file since this transaction has read it",
        (LOCK, *WRITES),
        Left.SNAPSHOT,
        Do("run the whole transaction again; lock before the first read", retryable=True),
        ("sqlite",),
    ),
    Row(
        8,
        "SQLITE_READONLY",
        LockNotSupported,
        "read-only file",
        "ForUpdate of a file that is opened read-only: `mode=ro`, `PRAGMA query_only`",
        (LOCK,),
        Left.REST,
        Do("open the file for writing, or read with SnapshotRead", retryable=False),
    ),
)

_MIGRATE = Do("allow snapshots: the migration of docs/migrations.md", retryable=False)
_LATER = Do("try again when the migration has ended", retryable=False)

NO_SEEK = "the key's index cannot be sought: its type, a view, no such index"
NO_ROWS = "lock another table, or lock_key()"
MSSQL = (
    Row(
        1222,
        "lock request time-out",
        LockNotAvailable,
        "scripted",
        "NoWait, or LOCK_TIMEOUT has passed",
        (LOCK, *WRITES),
        Left.REST,
        RETRY,
    ),
    Row(
        1204,
        "no lock resource",
        LockNotAvailable,
        "scripted",
        "the server's memory for locks is full",
        (LOCK, *WRITES),
        Left.REST,
        RETRY,
    ),
    Row(
        1205,
        "deadlock victim",
        DeadlockDetected,
        "scripted",
        "a circle of waits",
        (LOCK, *WRITES),
        Left.GONE,
        RETRY,
    ),
    Row(
        3960,
        "update conflict",
        SnapshotConflict,
        "scripted",
        "a write under SNAPSHOT of what another has changed",
        WRITES,
        Left.GONE,
        RETRY,
    ),
    Row(
        3952,
        "snapshot not allowed",
        LockNotSupported,
        "scripted",
        "SharedRead or SnapshotRead, in a database that does not allow snapshots",
        (LOCK,),
        Left.UNKNOWN,
        _MIGRATE,
    ),
    *(
        Row(
            number,
            "snapshot in transition",
            LockNotSupported,
            "scripted",
            "SharedRead or SnapshotRead, while ALTER DATABASE switches snapshots",
            (LOCK,),
            Left.UNKNOWN,
            _LATER,
        )
        for number in (3953, 3954, 3956)
    ),
    Row(
        3951,
        "switched too late",
        WrongIsolation,
        "scripted",
        "SNAPSHOT was set in a transaction that had begun",
        (LOCK,),
        Left.UNKNOWN,
        Do("take the lock before any other statement of the transaction", retryable=False),
    ),
    *(
        Row(number, name, SnapshotConflict, "scripted", when, WRITES, Left.GONE, RETRY)
        for number, name, when in (
            (3961, "changed definition", "DDL of another transaction, under SNAPSHOT"),
            (3966, "row versions removed", "tempdb was full, under SNAPSHOT"),
            (3958, "row version not found", "tempdb was full, under SNAPSHOT"),
            (
                3907,
                "row version not found",
                "the persistent version store was full, under SNAPSHOT",
            ),
            (3949, "row version not found", "on a readable secondary"),
            (3948, "terminated", "a replica changed its role, or deleted old rows, under SNAPSHOT"),
        )
    ),
    *(
        Row(number, name, SnapshotConflict, "scripted", when, WRITES, Left.REST, RETRY)
        for number, name, when in (
            (13535, "temporal table", "a row whose period begins later than the transaction"),
            (601, "moved rows", "a scan by NoLock whose rows have moved"),
        )
    ),
    *(
        Row(number, name, kind, "scripted", when, (LOCK,), Left.UNKNOWN, Do(do, retryable=False))
        for number, name, kind, when, do in (
            (650, "READPAST", WrongIsolation, "SkipLocked at SERIALIZABLE", "use READ COMMITTED"),
            (651, "granularity", LockNotSupported, "a clustered columnstore index", NO_ROWS),
            (10794, "hint", LockNotSupported, "a memory-optimized table", NO_ROWS),
            (41332, "level", LockNotSupported, "a memory-optimized table", NO_ROWS),
            (41368, "level", LockNotSupported, "a memory-optimized table", NO_ROWS),
            (8622, "no plan", LockNotSupported, NO_SEEK, "[see the causes](mssql.md#keys)"),
        )
    ),
)

ROWS: Mapping[str, tuple[Row, ...]] = {
    "postgresql": POSTGRESQL,
    "mysql": MYSQL,
    "mariadb": MARIADB,
    "mssql": MSSQL,
    "sqlite": SQLITE,
}
"""By dialect file, in the order of the page."""


def table(database: str) -> Iterator[str]:
    """The lines of one database's table."""
    heads = ["Number", "Error", "When", "From a", "What is left of the transaction", "What to do"]
    heads += ["[Evidence](mssql.md#evidence)"] if database == "mssql" else []
    yield _line(heads)
    yield "|" + "---|" * len(heads)
    for row in ROWS[database]:
        where = ", ".join(one.value for one in row.where)
        cells = [f"{row.number} {row.name}", f"`{row.error.__name__}`", row.when, where]
        cells += [row.left.value, row.do.words]
        if database == "mssql":
            cells.append("S" if row.left is Left.UNKNOWN else "S; what is left: M")
        yield _line(cells)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
