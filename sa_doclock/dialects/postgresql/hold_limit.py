"""The limits of PostgreSQL for a transaction that holds locks, set for this transaction alone."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection

from ...options import milliseconds
from ..base import ServerHoldLimit

_IDLE: Final = "idle_in_transaction_session_timeout"
_WHOLE: Final = "transaction_timeout"
HAS_TRANSACTION_TIMEOUT: Final = (17,)  # https://www.postgresql.org/docs/release/17.0/

# set_config(.., true) is SET LOCAL.  A shorter limit of the server's own stays; 0 is none.
_LIMITED: Final = (
    "set_config('{name}', CASE WHEN current_setting('{name}')::interval "
    "BETWEEN '0.001 s' AND '{limit}ms' THEN current_setting('{name}') ELSE '{limit}ms' END, true)"
)


def after_lock(connection: Connection, seconds: float) -> str:
    """Return the statement that is sent in one go with the lock, behind it.

    The server executes it when the lock is granted.
    """
    version = connection.dialect.server_version_info
    if version is None or version < HAS_TRANSACTION_TIMEOUT:
        return _select(seconds, _IDLE)
    return _select(seconds, _IDLE, _WHOLE)


def _select(seconds: float, *names: str) -> str:
    limit = milliseconds(seconds)
    return f"SELECT {', '.join(_LIMITED.format(name=name, limit=limit) for name in names)}"


class PostgreSQLHoldLimit(ServerHoldLimit):
    """The limits of a transaction that holds locks."""

    def limit(self, connection: Connection, seconds: float) -> None:
        # Sent before the lock: transaction_timeout would count the wait for it.
        connection.exec_driver_sql(_select(seconds, _IDLE))
