"""The settings of a connection, queried on that connection; and a clock for hold_limit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import Session

# --------------------------------------------------------------------------------------------------
# The settings of a connection, as the connection itself reports them.

#: How long the connection waits for a lock, and its other limits on statements.
_PATIENCE: Mapping[str, str] = {
    "postgresql": "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')",
    "mysql": "SELECT @@innodb_lock_wait_timeout, @@lock_wait_timeout, @@max_execution_time",
    "mariadb": "SELECT @@innodb_lock_wait_timeout, @@lock_wait_timeout, @@max_statement_time",
    "mssql": "SELECT @@LOCK_TIMEOUT",
    "sqlite": "PRAGMA busy_timeout",
}

#: The isolation level, and whether the transaction may write.
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
    """Query how long the connection waits."""
    return list(connection.exec_driver_sql(_PATIENCE[_name_of(connection)]).one())


def isolation_of(connection: sa.Connection) -> list[Any]:
    """Query the isolation level of the transaction, and the connection's default."""
    return list(connection.exec_driver_sql(_ISOLATION[_name_of(connection)]).one())


def set_patience(engine: sa.Engine, seconds: int) -> None:
    """Give every new connection its own limit, different from the server's."""

    def connected(connection: Any, _: object) -> None:
        cursor = connection.cursor()
        cursor.execute(_SET_PATIENCE[_name_of(engine)].format(seconds))
        cursor.close()
        connection.commit()

    event.listen(engine, "connect", connected)


def _name_of(bind: sa.Engine | sa.Connection) -> str:
    return "mariadb" if getattr(bind.dialect, "is_mariadb", False) else bind.dialect.name


# --------------------------------------------------------------------------------------------------
# A clock that tests can move forward, and server limits, for the tests of hold_limit.

#: Long enough for every step of a test; the tests advance the clock past it.
LONG = 600


class Clock:
    """The clock by which a session measures how long it has held its locks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead = 0.0
        monkeypatch.setattr("sa_doclock.core.ledger.time", SimpleNamespace(monotonic=self._now))

    def _now(self) -> float:
        return time.monotonic() + self._ahead

    def put_forward(self, seconds: float = LONG + 1) -> None:
        self._ahead += seconds


#: The limits of a connection, in seconds or as the server formats them.
LIMITS = {
    "postgresql": "SELECT current_setting('idle_in_transaction_session_timeout'), "
    "current_setting('transaction_timeout', true)",
    "mysql": "SELECT @@SESSION.wait_timeout",
    "mariadb": "SELECT @@SESSION.idle_transaction_timeout",
}
DEFAULTS = {"postgresql": ("0", "0"), "mysql": (28800,), "mariadb": (0,)}
LIMITED = {"postgresql": ("10min", "10min"), "mysql": (LONG,), "mariadb": (LONG,)}
#: The limit is sent before the lock here; transaction_timeout would include the wait for it.
LIMITED_BEFORE = {**LIMITED, "postgresql": ("10min", "0")}


def limits_of(bind: sa.Engine | Session, database: str) -> tuple[object, ...]:
    """Return the limits of the connection that is used next."""
    statement = sa.text(LIMITS[database])
    if isinstance(bind, Session):
        return known(bind.execute(statement).one(), bind.get_bind().dialect)
    with bind.connect() as connection:
        return known(connection.execute(statement).one(), bind.dialect)


def known(limits: sa.Row[Any], dialect: sa.Dialect) -> tuple[object, ...]:
    """Return the limits; an unset transaction_timeout becomes an object equal to any string.

    PostgreSQL 17 introduced it, and sa_doclock sets it only with psycopg 3.
    """
    first, others = limits[0], limits[1:]
    missing = None in others or (
        dialect.name == "postgresql" and dialect.driver.removesuffix("_async") != "psycopg"
    )
    return (first, *([ANY] * len(others) if missing else others))
