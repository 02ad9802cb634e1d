"""Checks of SQL Server.  No test has run them on a real one: see docs/mssql.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...dialects import quoted_name
from .check import Problem, Subject, check, compatible_problem

_OLDEST = 13  # SQL Server 2016
# "sys.databases": snapshot_isolation_state 1 is ON; 2 and 3 are transitions.
# https://learn.microsoft.com/sql/relational-databases/system-catalog-views/sys-databases-transact-sql
_SNAPSHOT = "SELECT snapshot_isolation_state FROM sys.databases WHERE database_id = DB_ID()"
_VERSIONED = "SELECT is_read_committed_snapshot_on FROM sys.databases WHERE database_id = DB_ID()"
_UPDATEABILITY = "SELECT CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS varchar(20))"
_ALTER = "ALTER DATABASE CURRENT SET {};"
# "sys.indexes", allow_row_locks; "sys.tables", lock_escalation: 0 is TABLE.
_ROW_LOCKS = (
    "SELECT COUNT(*) FROM sys.indexes WHERE object_id = OBJECT_ID(:name) AND allow_row_locks = 0"
)
_ESCALATION = "SELECT lock_escalation FROM sys.tables WHERE object_id = OBJECT_ID(:name)"


@check("mssql-snapshot-isolation", "error")
def snapshot_isolation(subject: Subject) -> Iterator[Problem]:
    """The database does not allow SNAPSHOT transactions: SharedRead and SnapshotRead raise
    LockNotSupported.
    """
    if subject.ask(_SNAPSHOT) != 1:
        yield Problem(
            "the database does not allow SNAPSHOT, which SharedRead and SnapshotRead need",
            _ALTER.format("ALLOW_SNAPSHOT_ISOLATION ON"),
        )


@check("mssql-read-committed-snapshot", "warning")
def read_committed_snapshot(subject: Subject) -> Iterator[Problem]:
    """READ_COMMITTED_SNAPSHOT is off: a plain read waits for every changed row of another
    transaction, and writers wait for readers.
    """
    if not subject.ask(_VERSIONED):
        yield Problem(
            "plain reads wait for writers: READ_COMMITTED_SNAPSHOT is off",
            _ALTER.format("READ_COMMITTED_SNAPSHOT ON WITH ROLLBACK IMMEDIATE"),
        )


@check("mssql-read-only", "error")
def read_only(subject: Subject) -> Iterator[Problem]:
    """The database is read-only, like a readable secondary, where SQL Server ignores all locking
    hints.
    """
    if subject.ask(_UPDATEABILITY) == "READ_ONLY":
        yield Problem(
            "the database is read-only here, where all locking hints are ignored",
            "connect without ApplicationIntent=ReadOnly, to the primary replica",
        )


@check("mssql-compatible", "error")
def compatible(subject: Subject) -> Iterator[Problem]:
    """The server is another product with SQL Server's protocol: Babelfish, Azure Synapse Analytics
    or a Fabric Warehouse. Locks that are not real there raise LockNotSupported; see [Compatible
    servers](compatible-servers.md).
    """
    yield from compatible_problem(subject.strategy.compatible, "SQL Server")


@check("mssql-lock-timeout", "info")
def lock_timeout(subject: Subject) -> Iterator[Problem]:
    """A statement waits forever for a lock, unless the program sets a limit (`LOCK_TIMEOUT` is -1)."""
    if int(subject.ask("SELECT @@LOCK_TIMEOUT")) < 0:
        yield Problem(
            "a statement without a limit of its own waits for a lock for ever",
            "LockingSession(lock_timeout=30)",
        )


@check("mssql-version", "error")
def version(subject: Subject) -> Iterator[Problem]:
    """The version is older than SQL Server 2016, the oldest that sa_doclock supports."""
    if subject.version and subject.version[0] < _OLDEST:
        yield Problem(
            f"SQL Server {subject.version_text} is older than 2016, the oldest that is supported",
            "upgrade the server",
        )


@check("mssql-row-locks", "error")
def row_locks(subject: Subject) -> Iterator[Problem]:
    """An index of a header's table has ALLOW_ROW_LOCKS = OFF: a lock covers a page, or fails with
    error 651.
    """
    for name in _table_names(subject):
        if subject.ask(_ROW_LOCKS, name=name):
            yield Problem(
                f"{name} has an index without row locks",
                f"ALTER INDEX ALL ON {name} SET (ALLOW_ROW_LOCKS = ON);",
            )


@check("mssql-lock-escalation", "info")
def lock_escalation(subject: Subject) -> Iterator[Problem]:
    """A transaction that locks about 5,000 rows of a table locks the whole table (`LOCK_ESCALATION
    = TABLE`): everybody waits for a large batch.
    """
    for name in _table_names(subject):
        found: Any = subject.ask(_ESCALATION, name=name)
        if found == 0:
            yield Problem(
                f"a transaction that locks about 5,000 rows of {name} locks the whole table",
                f"ALTER TABLE {name} SET (LOCK_ESCALATION = DISABLE);",
            )


def _table_names(subject: Subject) -> Iterator[str]:
    for table in subject.tables:
        yield quoted_name(subject.connection, table)
