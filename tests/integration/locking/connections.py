"""The settings of a connection, asked of the connection itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

#: How long the connection waits for a lock, and whatever else could limit its statements.
_PATIENCE: Mapping[str, str] = {
    "postgresql": "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')",
    "mysql": "SELECT @@innodb_lock_wait_timeout, @@lock_wait_timeout, @@max_execution_time",
    "mariadb": "SELECT @@innodb_lock_wait_timeout, @@lock_wait_timeout, @@max_statement_time",
    "mssql": "SELECT @@LOCK_TIMEOUT",
    "sqlite": "PRAGMA busy_timeout",
}

#: The isolation level, and whether it may write.
_ISOLATION: Mapping[str, str] = {
    "postgresql": """
        SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only'),
        current_setting('default_transaction_isolation'),
        current_setting('default_transaction_read_only')""",
    "mysql": "SELECT @@transaction_isolation, @@transaction_read_only",
    "mariadb": "SELECT @@tx_isolation, @@tx_read_only",
    "mssql": """
        SELECT transaction_isolation_level FROM sys.dm_exec_sessions WHERE session_id = @@SPID""",
    "sqlite": "PRAGMA query_only",
}

_SET_PATIENCE: Mapping[str, str] = {
    "postgresql": "SET lock_timeout = '{}s'",
    "mysql": "SET SESSION innodb_lock_wait_timeout = {}",
    "mariadb": "SET SESSION innodb_lock_wait_timeout = {}",
    "mssql": "SET LOCK_TIMEOUT {}000",
    "sqlite": "PRAGMA busy_timeout = {}000",
}


def patience_of(connection: sa.Connection) -> list[Any]:
    """Ask the connection how long it waits."""
    return list(connection.exec_driver_sql(_PATIENCE[_name_of(connection)]).one())


def isolation_of(connection: sa.Connection) -> list[Any]:
    """Ask the connection for its isolation level, that of the transaction and the default."""
    return list(connection.exec_driver_sql(_ISOLATION[_name_of(connection)]).one())


def set_patience(engine: sa.Engine, seconds: int) -> None:
    """Give every new connection a limit of its own, which is the server's no more."""

    def connected(connection: Any, _: object) -> None:
        cursor = connection.cursor()
        cursor.execute(_SET_PATIENCE[_name_of(engine)].format(seconds))
        cursor.close()
        connection.commit()

    event.listen(engine, "connect", connected)


def _name_of(bind: sa.Engine | sa.Connection) -> str:
    return "mariadb" if getattr(bind.dialect, "is_mariadb", False) else bind.dialect.name
