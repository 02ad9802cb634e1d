"""The transactions in which an update cannot get lost, whatever the program locks."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from ...dialects import strategy_class
from ...dialects.base import IsolationLevels


def finds_conflicts(connection: Connection) -> bool:
    """Return whether the database refuses to overwrite what has changed since it was read.

    Nothing is sent: the level is that of the connection's options, or the engine's default.
    """
    known = strategy_class(connection.dialect)
    levels = IsolationLevels if known is None else known(connection.dialect).isolation
    return level_of(connection) in levels.conflicting


def level_of(connection: Connection) -> str:
    """Return the isolation level in upper case, empty where it is not known."""
    level = connection.get_execution_options().get("isolation_level")
    return str(level or connection.default_isolation_level or "").replace("_", " ").upper()


def commits_each_statement(connection: Connection) -> bool:
    """Return whether a lock of this connection ends with its statement."""
    if level_of(connection) == "AUTOCOMMIT":
        return True
    try:
        dbapi: Any = connection.connection.dbapi_connection
        return connection.dialect.detect_autocommit_setting(dbapi)
    except (AttributeError, NotImplementedError):
        return False  # an older SQLAlchemy, or a driver that cannot tell
