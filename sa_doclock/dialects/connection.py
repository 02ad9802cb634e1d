"""Role 3 of a dialect: the state of a connection, and how its transaction ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from sqlalchemy import Connection
from sqlalchemy.engine import Dialect

from ..errors import LockNotSupported

AUTOCOMMIT = (
    "the connection is in AUTOCOMMIT, where a lock ends with its statement; "
    "use an engine or session with a transactional isolation level"
)


class ConnectionState:
    """The server, and the state of its connections."""

    asks_server: ClassVar[bool] = True
    """The answers depend on the server's version or default isolation level."""

    reports_idle: ClassVar[bool] = False
    """Some driver sends a ROLLBACK also where no transaction is open, and ``is_idle()`` can tell."""

    cluster: str | None = None
    """The cluster that the server is a node of, where other nodes take writes too and do not know
    the locks of this one; set by ``note_server()``."""

    autocommit_by_default: bool = False
    """The engine was made with ``isolation_level="AUTOCOMMIT"``; set by the registry."""

    server_version: tuple[Any, ...] | None
    """The version of the server; None before the first connection."""

    def __init__(self, dialect: Dialect) -> None:
        # Not the dialect itself: the strategy is kept for as long as the dialect lives.
        self.server_version = dialect.server_version_info
        self.plans: dict[Any, Any] = {}
        """The plans of locks on this engine; the package transaction makes them."""
        self.findings: dict[Any, Any] = {}
        """Facts about this server that other packages found out once, by keys of their own."""

    def note_server(self, connection: Connection) -> None:
        """Remember the settings of the server; called once, with the first connection."""

    def check_autocommit(self, connection: Connection) -> None:
        """Raise LockNotSupported if every statement is a transaction of its own."""
        if getattr(connection.connection.dbapi_connection, "autocommit", False):
            raise LockNotSupported(AUTOCOMMIT)

    def before_savepoint(self, connection: Connection) -> None:
        """Send what a SAVEPOINT needs in front of it."""

    def before_rollback(self, connection: Connection) -> None:
        """Take the error that a ROLLBACK would meet; called only on a node of a cluster."""

    def commit_failed(self, connection: Connection) -> None:
        """End the transaction that a failed COMMIT has left open, which SQLAlchemy does not."""

    def interrupted(self, connection: Connection, cursor: Any) -> None:
        """End what closing the connection, which follows, would leave open."""

    def is_idle(self, dbapi_connection: Any) -> bool:
        """Return whether the server's answer to COMMIT or ROLLBACK says: no transaction is open.

        False: it does not, or the driver cannot tell.
        """
        return False


@contextmanager
def connection_setting(connection: Connection, read: str, write: str, value: int) -> Iterator[None]:
    """Set a setting of the connection for this block, and restore it whatever happens.

    :param read: the statement that returns the old value.
    :param write: the statement that sets a value, in front of the value.
    """
    old = connection.exec_driver_sql(read).scalar_one()
    try:
        connection.exec_driver_sql(f"{write} {value}")
        yield
    finally:
        if not connection.invalidated:
            connection.exec_driver_sql(f"{write} {int(old)}")
