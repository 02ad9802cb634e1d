"""The transactions in which an update cannot get lost, whatever the program locks."""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakKeyDictionary

from sqlalchemy import Connection
from sqlalchemy.engine import Dialect

from ...dialects import strategy_class
from ...dialects.base import IsolationLevels, LockStrategy

# The facts of a database, by the dialect of its engine, which all sessions share.
# Threads: the audit's listeners run in one thread at a time.
_strategies: Final[WeakKeyDictionary[Dialect, LockStrategy]] = WeakKeyDictionary()


def finds_conflicts(connection: Connection) -> bool:
    """Return whether the database refuses to overwrite what has changed since it was read.

    Nothing is sent: the level is that of the connection's options, or the engine's default.
    """
    strategy = _strategy_of(connection)
    levels = IsolationLevels.conflicting if strategy is None else strategy.isolation.conflicting
    return level_of(connection) in levels


def has_one_writer(connection: Connection) -> bool:
    """Return whether a transaction that has written keeps all others from writing."""
    strategy = _strategy_of(connection)
    return strategy is not None and strategy.locks_database


def _strategy_of(connection: Connection) -> LockStrategy | None:
    """Return what is known of the database of a connection that is open; None where nothing is."""
    dialect = connection.dialect
    found = _strategies.get(dialect)
    if found is None:
        known = strategy_class(dialect)
        if known is not None:
            found = _strategies[dialect] = known(dialect)
    return found


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
