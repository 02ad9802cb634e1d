"""The limits of a transaction by psycopg 3: sent with the lock, and true after many rows too.

psycopg sends the rows of ``executemany()`` in a pipeline of its own, which stops the server's clock of
an idle transaction: see pipeline.py.  Inside of a pipeline of ours it opens none.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, Literal
from weakref import WeakSet

from sqlalchemy import Connection
from sqlalchemy.util import greenlet_spawn

from ...options import LockOptions
from ..base import LockWaits
from .deferred_writes import keeps_writes
from .limits import PostgreSQLHoldLimit, after_lock
from .pipeline import listen_once, send_in_pipeline
from .pipelined_lock import PipelinedLock


class PipelinedHoldLimit(PostgreSQLHoldLimit):
    """The limits of a transaction, set in one round trip with the lock."""

    def limit_with_wait(
        self,
        waits: LockWaits,
        connection: Connection,
        lock: LockOptions,
        seconds: float | None,
        hold_limit: float,
        *,
        few_rows: bool,
    ) -> AbstractContextManager[None]:
        after = after_lock(connection, hold_limit)
        return PipelinedLock(connection, seconds, few_rows=few_rows, after=after)

    def keep_idle_clock(self, connection: Connection) -> None:
        _limited.add(connection)
        listen_once(type(connection.dialect), {"do_executemany": _execute_many})


# Threads: a set's add() and the search in it are atomic.
# Each is the session's own, and goes with its transaction.
_limited: Final[WeakSet[Connection]] = WeakSet()


def _execute_many(
    cursor: Any, statement: str, parameters: Any, context: Any
) -> Literal[True] | None:
    """Execute it in place of SQLAlchemy, which calls the same method of the cursor."""
    connection = context.root_connection
    if connection not in _limited or keeps_writes(connection):
        return None
    call = partial(cursor.executemany, statement, parameters)
    if connection.dialect.is_async:  # the cursor is SQLAlchemy's, which waits for the driver itself
        call = partial(greenlet_spawn, call)
    driver = connection.connection.driver_connection
    send_in_pipeline(driver, [call])
    return True
