"""What was set on a pooled connection is taken back before the pool hands it to anybody else.

A named lock of MySQL, or a setting of the session, outlives COMMIT and ROLLBACK and would go
back to the pool with the connection.  The statement that takes it back is noted on the
connection before the one that sets it is sent; so it runs whatever has happened in between,
and where it fails the connection is closed rather than returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry, Pool, PoolResetState

from .isolation import guard_way_back
from .reset import forget_end, roll_back_what_was_not_sent, tidy_now

_NOTES: Final = "sa_doclock.undo"


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
    tidy_now(record)
    roll_back_what_was_not_sent(record, dbapi_connection)
    guard_way_back(record)
    notes = record.info.pop(_NOTES, ())
    if notes:
        forget_end(record)
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
