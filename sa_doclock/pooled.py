"""What was set on a pooled connection is taken back before the pool hands it to anybody else.

A named lock of MySQL, or a setting of the session, outlives COMMIT and ROLLBACK and would go
back to the pool with the connection.  The statement that takes it back is noted on the
connection before the one that sets it is sent; so it runs whatever has happened in between,
and where it fails the connection is closed rather than returned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry, Pool, PoolResetState

_NOTES: Final = "sa_doclock.undo"
_LEVEL: Final = "sa_doclock.level"
_ENDED: Final = "sa_doclock.ended"
_COMMIT: Final = "sa_doclock.commit"


def undo_later(connection: Connection, statement: str) -> None:
    """Have the statement run when the connection goes back to its pool, or by ``undo_now()``.

    Those noted last run first.  A connection that is lost or closed needs none of them, and
    forgets them.

    :param statement: without parameters; each driver writes those in another way.
    """
    connection.info.setdefault(_NOTES, []).append(statement)


def undo_nothing(connection: Connection) -> None:
    """Forget what was noted last: it was not set."""
    connection.info[_NOTES].pop()


def undo_now(connection: Connection) -> None:
    """Run what is noted, on an open connection that its owner goes on to use."""
    if _NOTES not in connection.info:
        return
    try:
        _run(connection.connection.dbapi_connection, connection.info.pop(_NOTES))
    except BaseException as error:
        connection.invalidate(error)
        if not isinstance(error, Exception):
            raise


def level_was_set(connection: Connection) -> None:
    """Have SQLAlchemy's way back to the old isolation level lose no connection of the pool."""
    connection.info[_LEVEL] = True


def note_ended(connection: Connection, is_idle: Callable[[Any], bool]) -> None:
    """The server has answered a COMMIT or ROLLBACK, and the connection is about to go back.

    :param is_idle: whether the driver knows that no transaction is open on its connection.
    """
    connection.info[_ENDED] = is_idle


def reset_when_needed() -> dict[str, Any]:
    """Engine options that save the ROLLBACK of a connection whose transaction has ended.

    ``create_engine(url, **reset_when_needed())``, for MySQL and MariaDB, with PyMySQL, aiomysql
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


# Of all pools: after dispose() the one that a connection came from, and returns to, is not its
# engine's any more.  From the start: a listener that is added later meets threads that go
# through the list.  It costs a look into a dictionary when a connection goes back.
@event.listens_for(Pool, "reset")
def _on_reset(
    dbapi_connection: DBAPIConnection,
    record: ConnectionPoolEntry | None,
    reset_state: PoolResetState,
) -> None:
    # Before the pool's own ROLLBACK, if that is still to come.  What is raised here makes the
    # pool close the connection.
    if record is None or reset_state.terminate_only:
        return  # it is closed next
    if record.info.pop(_COMMIT, False) and dbapi_connection is not None:
        dbapi_connection.rollback()
    if record.info.pop(_LEVEL, False):
        _guard_finalizers(record)
    notes = record.info.pop(_NOTES, ())
    if notes:
        record.info.pop(_ENDED, None)  # which is not the last word any more
    _run(dbapi_connection, notes)


def _run(dbapi_connection: DBAPIConnection | None, statements: Sequence[str]) -> None:
    if not statements or dbapi_connection is None:
        return
    cursor = dbapi_connection.cursor()
    try:
        for statement in reversed(statements):
            cursor.execute(statement)
    finally:
        cursor.close()


def _guard_finalizers(record: ConnectionPoolEntry) -> None:
    # No public interface.  SQLAlchemy sets the level back by these functions, after all that it
    # guards: where the connection is lost by then, the driver's own error comes out of a commit
    # that is done, and the pool counts the connection as in use for ever.
    finalizers: deque[Any] = getattr(record, "finalize_callback", deque())
    finalizers.extend(
        partial(_guarded, record, finalizers.popleft()) for _ in range(len(finalizers))
    )


def _guarded(record: Any, finalizer: Any, dbapi_connection: DBAPIConnection) -> None:
    try:
        finalizer(dbapi_connection)
    except BaseException as error:
        record.invalidate(error)  # as after an error of the ROLLBACK that came before
        if not isinstance(error, Exception):
            record.checkin(_fairy_was_created=False)  # what was to come after us
            raise
