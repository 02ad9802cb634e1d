"""The two options of a SQL Server database: the SQL that reads and sets each of them."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

SYSTEM_DATABASES: Final = ("master", "model", "msdb", "tempdb")

# By name, not by DB_ID(): on Azure SQL that may differ from database_id ("DB_ID").
ASK: Final = """\
SELECT name, snapshot_isolation_state, is_read_committed_snapshot_on
FROM sys.databases WHERE name = DB_NAME()"""


class SnapshotState(enum.IntEnum):
    """sys.databases.snapshot_isolation_state; is_read_committed_snapshot_on has two of them."""

    OFF = 0
    ON = 1
    IN_TRANSITION_TO_OFF = 2
    IN_TRANSITION_TO_ON = 3


@dataclass(frozen=True)
class Setting:
    """One database option: its name, its column, and the sessions that can block it."""

    name: str
    column: str
    termination: str
    waits: str
    blocking_sessions: str  # SELECT session_id, login_name, host_name, program_name, seconds
    advice: str

    def alter(self, wanted: SnapshotState) -> str:
        """Return the statement that sets it."""
        return f"ALTER DATABASE CURRENT SET {self.name} {wanted.name}{self.termination}"

    def script(self, wanted: SnapshotState) -> str:
        """Return the same for ``--sql``: one batch that asks first and checks afterwards."""
        database = "SELECT 1 FROM sys.databases WHERE name = DB_NAME()"
        reached = f"{database} AND {self.column} = {wanted:d}"
        # Python writes a tuple of plain strings as SQL writes its list.
        return f"""\
-- {self.waits}
IF DB_NAME() IN {SYSTEM_DATABASES}
    THROW 50000, '{self.name} is not set in a system database, connect to your own', 1;
IF NOT EXISTS ({reached})
    {self.alter(wanted)};
IF NOT EXISTS ({reached})
    THROW 50000, '{self.name} is not {wanted.name} yet, see sys.databases.{self.column}', 1"""


ALLOW_SNAPSHOT_ISOLATION: Final = Setting(
    name="ALLOW_SNAPSHOT_ISOLATION",
    column="snapshot_isolation_state",
    termination="",  # it takes none ("Setting options")
    waits="waits until every transaction that is open in the database has ended, blocks nobody",
    blocking_sessions="""\
SELECT s.session_id, s.login_name, s.host_name, s.program_name,
    DATEDIFF(second, a.transaction_begin_time, GETDATE()) AS seconds
FROM sys.dm_tran_database_transactions AS d
JOIN sys.dm_tran_active_transactions AS a ON a.transaction_id = d.transaction_id
JOIN sys.dm_tran_session_transactions AS t ON t.transaction_id = d.transaction_id
JOIN sys.dm_exec_sessions AS s ON s.session_id = t.session_id
WHERE d.database_id = DB_ID() AND s.session_id <> @@SPID
ORDER BY a.transaction_begin_time""",
    advice="5011: the login needs ALTER on the database. 5061, 5070: somebody else has the"
    " database locked (a restore, another ALTER DATABASE); run the migration again afterwards.",
)

READ_COMMITTED_SNAPSHOT: Final = Setting(
    name="READ_COMMITTED_SNAPSHOT",
    column="is_read_committed_snapshot_on",
    # Without it the statement waits for ever for the last connection of the application's pool;
    # ROLLBACK IMMEDIATE would end other people's transactions.
    termination=" WITH NO_WAIT",
    waits="fails at once (5070) while any other connection to the database is open",
    blocking_sessions="""\
SELECT s.session_id, s.login_name, s.host_name, s.program_name,
    DATEDIFF(second, s.login_time, GETDATE()) AS seconds
FROM sys.dm_exec_sessions AS s
WHERE s.database_id = DB_ID() AND s.is_user_process = 1 AND s.session_id <> @@SPID
ORDER BY s.login_time""",
    advice="5011: the login needs ALTER on the database. 5061, 5070: it needs to be the only"
    " connection to the database; stop the application, its pools and open query windows, and run"
    " the migration again. Nobody was disconnected: a DBA who wants that runs the statement"
    " WITH ROLLBACK IMMEDIATE by hand, and the migration then finds it done.",
)
