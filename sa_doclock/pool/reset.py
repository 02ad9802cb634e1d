"""The pool's ROLLBACK, which is redundant if no transaction is open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Connection, Pool, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry, PoolResetState

_ENDED: Final = "sa_doclock.ended"


def skip_redundant_rollback() -> dict[str, Any]:
    """Return engine options that save the ROLLBACK of a connection whose transaction has ended.

    ``create_engine(url, **skip_redundant_rollback())`` is for MySQL and MariaDB, with PyMySQL,
    aiomysql or mysql-connector: other drivers send no ROLLBACK without an open transaction, or
    (mysqlclient) cannot tell.  With it, the pool sends none after an answered ``commit()``,
    ``save_changes()``, ``rollback()`` or ``release_locks()`` of a :class:`LockingSession`, and its
    usual one otherwise.

    One case goes unnoticed: a listener of ``after_commit`` that sends a locking SELECT on the
    driver's own connection, and does not end that transaction.

    Example::

        engine = create_engine("mysql+pymysql://...", **skip_redundant_rollback())

    :returns: ``pool_reset_on_return`` and ``pool_events``; do not pass these two yourself.
    """
    return {"pool_reset_on_return": None, "pool_events": [(_roll_back_unless_ended, "reset")]}


def rolls_back_by_listener(pool: Pool) -> bool:
    """Return whether the pool was made with :func:`skip_redundant_rollback`."""
    return event.contains(pool, "reset", _roll_back_unless_ended)


def note_ended(connection: Connection, is_idle: Callable[[Any], bool]) -> None:
    """Record that the server has answered COMMIT or ROLLBACK, just before the connection returns.

    :param is_idle: returns whether the driver knows that no transaction is open on its connection.
    """
    connection.info[_ENDED] = is_idle


def forget_end(record: ConnectionPoolEntry) -> None:
    """Record that another statement is sent, which may open a transaction."""
    record.info.pop(_ENDED, None)


def _roll_back_unless_ended(
    dbapi_connection: DBAPIConnection,
    record: ConnectionPoolEntry | None,
    reset_state: PoolResetState,
) -> None:
    is_idle = None if record is None else record.info.pop(_ENDED, None)
    if reset_state.transaction_was_reset or reset_state.terminate_only:
        return
    # If not asyncio_safe, no loop can send it, and the connection is closed next.
    if reset_state.asyncio_safe and not (is_idle is not None and is_idle(dbapi_connection)):
        dbapi_connection.rollback()
