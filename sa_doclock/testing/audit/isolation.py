"""The transactions in which an update cannot get lost, whatever the program locks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Connection

#: By SQLAlchemy's name of the database: the levels at which a write to a row that another transaction
#: has changed since the read is an error, or at which the read itself has locked the row.
_PROTECTING: Final[Mapping[str, frozenset[str]]] = {
    "postgresql": frozenset({"REPEATABLE READ", "SERIALIZABLE"}),  # 40001
    "mysql": frozenset({"SERIALIZABLE"}),  # plain reads take shared locks
    "mariadb": frozenset({"SERIALIZABLE"}),
    "mssql": frozenset({"REPEATABLE READ", "SERIALIZABLE", "SNAPSHOT"}),  # shared locks; 3960
    "sqlite": frozenset(),  # "SERIALIZABLE" is its only level; the driver begins no transaction for a read
}
_ONE_WRITER: Final = frozenset({"sqlite"})
_OTHERS: Final = frozenset({"SERIALIZABLE"})
_INNODB_DETECTS_SINCE: Final = (
    11,
    6,
    2,
)  # innodb_snapshot_isolation is on: 1020 at REPEATABLE READ


def finds_conflicts(connection: Connection) -> bool:
    """Return whether the database refuses to overwrite what has changed since it was read.

    Nothing is sent: the level is that of the connection's options, or the engine's default.
    """
    level = level_of(connection)
    dialect: Any = connection.dialect
    if getattr(dialect, "is_mariadb", False):
        detects = (dialect.server_version_info or ()) >= _INNODB_DETECTS_SINCE
        if detects and level == "REPEATABLE READ":
            return True
    return level in _PROTECTING.get(dialect.name, _OTHERS)


def has_one_writer(connection: Connection) -> bool:
    """Return whether a transaction that has written keeps all others from writing."""
    return connection.dialect.name in _ONE_WRITER


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
