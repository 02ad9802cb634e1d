"""Firebird's monitoring tables: the lock information that they contain, and its gaps.

For each statement and transaction, they count the records of a table that it locked, changed and waited
for.  So they show who waits, and on which table.  They show neither the row nor its holder: a blocker is
any other transaction that locked or changed records of the table.  See "Monitoring tables" in the
Language Reference.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table, text

from sa_doclock.dialects.base import Identity, LockMonitoring

_ID = "sa_doclock_firebird.id"
# Transactions that hold records of a table, and the statement that waits for one: a wait counts from its
# start (measured).
_HOLDERS = """
    SELECT t.mon$attachment_id AS id, t.mon$transaction_id AS transaction_id, s.mon$table_name AS name
    FROM mon$transactions t
    JOIN mon$table_stats s ON s.mon$stat_id = t.mon$stat_id
    JOIN mon$record_stats r ON r.mon$stat_id = s.mon$record_stat_id
    WHERE r.mon$record_locks + r.mon$record_updates + r.mon$record_deletes
        + r.mon$record_inserts > 0
"""
_HOLDERS_OF_TABLE = text(f"SELECT h.id FROM ({_HOLDERS}) h WHERE TRIM(h.name) = :name")  # noqa: S608
_WAITS = text(f"""
    SELECT w.mon$attachment_id, h.id, TRIM(s.mon$table_name),
        DATEDIFF(MILLISECOND FROM w.mon$timestamp TO CURRENT_TIMESTAMP) / 1000.0
    FROM mon$statements w
    JOIN mon$table_stats s ON s.mon$stat_id = w.mon$stat_id
    JOIN mon$record_stats r ON r.mon$stat_id = s.mon$record_stat_id
    JOIN ({_HOLDERS}) h ON h.name = s.mon$table_name AND h.transaction_id <> w.mon$transaction_id
    WHERE w.mon$state = 1 AND r.mon$record_waits > 0
""")  # noqa: S608
_CONNECTIONS = """
    SELECT a.mon$attachment_id, TRIM(a.mon$user), TRIM(a.mon$remote_process),
        DECODE(t.mon$state, 0, 'idle in transaction', 1, 'active'),
        DATEDIFF(MILLISECOND FROM t.mon$timestamp TO CURRENT_TIMESTAMP) / 1000.0,
        (SELECT FIRST 1 CAST(SUBSTRING(s.mon$sql_text FROM 1 FOR 2000) AS VARCHAR(2000))
         FROM mon$statements s
         WHERE s.mon$transaction_id = t.mon$transaction_id AND s.mon$state > 0),
        TRIM(a.mon$remote_address), FALSE
    FROM mon$attachments a
    LEFT JOIN mon$transactions t ON t.mon$attachment_id = a.mon$attachment_id
"""


def remember_id(connection: Connection) -> None:
    """Store the server's id of the connection, to be read while a statement runs."""
    if _ID not in connection.info:
        driver: Any = connection.connection.driver_connection
        connection.info[_ID] = int(driver.info.id)


class FirebirdMonitoring(LockMonitoring):
    """MON$ tables: SYSDBA and the owner of the database see all, others their own connections."""

    def connection_id(self, connection: Connection) -> int | None:
        """Return the connection's id from the start of the session's transaction on it."""
        found: int | None = connection.info.get(_ID)
        return found

    def holders(
        self, connection: Connection, header: Table, keys: Sequence[Identity], *, shared: bool
    ) -> Mapping[int, bool]:
        """Return the connections that locked or changed a record of the table."""
        dialect: Any = connection.dialect
        name = dialect.denormalize_name(header.name)
        found = connection.execute(_HOLDERS_OF_TABLE, {"name": name}).scalars()
        return dict.fromkeys(map(int, found), False)

    def waits(self, connection: Connection) -> Iterable[Sequence[Any]]:
        """Return statements that wait, or waited and still run, with possible blockers."""
        dialect: Any = connection.dialect
        for waiter, blocker, table, seconds in connection.execute(_WAITS):
            name = dialect.normalize_name(table)
            yield waiter, blocker, name, None, seconds

    def connections(self, connection: Connection, ids: Collection[int]) -> Iterable[Sequence[Any]]:
        """Return all connections; none of them is certain to hold a particular row."""
        return connection.exec_driver_sql(_CONNECTIONS)
