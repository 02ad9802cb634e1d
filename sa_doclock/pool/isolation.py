"""The isolation level that a connection goes back to, when the connection is lost by then.

SQLAlchemy sets the old level back when a connection returns to its pool, after all that the pool
guards: the driver's own error would come out of a commit that is done, and the pool would count
the connection as in use for ever.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

_LEVEL: Final = "sa_doclock.level"


def level_was_set(connection: Connection) -> None:
    """Have SQLAlchemy's way back to the old isolation level lose no connection of the pool."""
    connection.info[_LEVEL] = True


def guard_way_back(record: ConnectionPoolEntry) -> None:
    """Before the connection goes back: what fails when its level is set back closes it."""
    if record.info.pop(_LEVEL, False):
        # No public interface: these are the functions by which SQLAlchemy sets the level back.
        # tests/integration/locking/test_pooled_connection_lost.py fails when they are no more.
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
