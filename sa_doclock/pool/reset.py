"""The ROLLBACK of a connection that goes back to its pool: where it must be sent, and need not be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry, PoolResetState

_ENDED: Final = "sa_doclock.ended"
_COMMIT: Final = "sa_doclock.commit"
_TIDY: Final = "sa_doclock.tidy"


def note_ended(connection: Connection, is_idle: Callable[[Any], bool]) -> None:
    """The server has answered a COMMIT or ROLLBACK, and the connection is about to go back.

    :param is_idle: whether the driver knows that no transaction is open on its connection.
    """
    connection.info[_ENDED] = is_idle


def skip_redundant_rollback() -> dict[str, Any]:
    """Engine options that save the ROLLBACK of a connection whose transaction has ended.

    ``create_engine(url, **skip_redundant_rollback())``, for MySQL and MariaDB, with PyMySQL, aiomysql
    or mysql-connector.  SQLAlchemy's pool sends a ROLLBACK when a connection goes back to it, a
    round trip also after a COMMIT.  With these options it is left out where a
    :class:`LockingSession` has had the answer to its ``commit()``, ``save_changes()``,
    ``rollback()`` or ``release_locks()``, that answer has said that no transaction is open, and
    the session has nothing else to put back.  In all other cases, such as ``Session.close()`` in
    the midst of a transaction, a plain Connection, an error, or a driver that does not tell the
    status (mysqlclient), it is rolled back as ever.

    Not seen: a locking SELECT that a listener of ``after_commit`` sends past SQLAlchemy, on the
    driver's own connection, and does not end.

    PostgreSQL needs none of this: its drivers send no ROLLBACK where no transaction is open.

    :returns: ``pool_reset_on_return`` and ``pool_events``; give neither beside it.
    """
    return {"pool_reset_on_return": None, "pool_events": [(_roll_back_unless_ended, "reset")]}


def _roll_back_unless_ended(
    dbapi_connection: DBAPIConnection,
    record: ConnectionPoolEntry | None,
    reset_state: PoolResetState,
) -> None:
    is_idle = None if record is None else record.info.pop(_ENDED, None)
    if reset_state.transaction_was_reset or reset_state.terminate_only:
        return
    # asyncio_safe: else there is no loop to send it in, and the connection is closed next
    if reset_state.asyncio_safe and not (is_idle is not None and is_idle(dbapi_connection)):
        dbapi_connection.rollback()


def rollback_later(connection: Connection) -> None:
    """Have a ROLLBACK sent before the pool hands the connection to anybody else.

    Where COMMIT is not sent, because of a listener or of Ctrl-C, SQLAlchemy takes the transaction
    for ended all the same.  The connection would go back as it is, and whoever gets it next would
    commit what was written.
    """
    if not (connection.closed or connection.invalidated):
        connection.info[_COMMIT] = True


def rollback_not_needed(connection: Connection) -> None:
    """The COMMIT has returned."""
    if not (connection.closed or connection.invalidated):
        connection.info.pop(_COMMIT, None)


def roll_back_what_was_not_sent(
    record: ConnectionPoolEntry, dbapi_connection: DBAPIConnection | None
) -> None:
    """Send the ROLLBACK that :func:`rollback_later` has asked for."""
    if record.info.pop(_COMMIT, False) and dbapi_connection is not None:
        dbapi_connection.rollback()


def forget_end(record: ConnectionPoolEntry) -> None:
    """Something else is sent over it, so that COMMIT was not the last word."""
    record.info.pop(_ENDED, None)


def tidy_later(connection: Connection, tidy: Callable[[], None]) -> None:
    """Have this done when the connection goes back to its pool, before anything is sent over it.

    :param tidy: must not keep the connection alive.
    """
    connection.info[_TIDY] = tidy


def tidy_no_more(connection: Connection) -> None:
    """It was done."""
    if not (connection.closed or connection.invalidated):
        connection.info.pop(_TIDY, None)


def tidy_now(record: ConnectionPoolEntry) -> None:
    """Do what :func:`tidy_later` was asked for."""
    tidy = record.info.pop(_TIDY, None)
    if tidy is not None:
        tidy()
