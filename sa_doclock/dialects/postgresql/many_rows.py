"""Statements of many rows, in a transaction that the server ends where it is idle for too long.

psycopg sends the rows of ``executemany()`` in a pipeline of its own, which stops the server's clock of
an idle transaction: see pipeline.py.  Inside of a pipeline of ours it opens none.
"""

from __future__ import annotations

from threading import Lock
from typing import Any, Final, Literal
from weakref import WeakSet

from sqlalchemy import Connection, event
from sqlalchemy.engine import Dialect

from .deferred_writes import keeps_writes
from .pipeline import PipelineBlock, run_steps

# Threads: read and changed under the lock.  The event is that of a class, whose listeners are
# few.
_listened: Final[set[type[Dialect]]] = set()
_listening = Lock()
# Threads: a set's add() and the search in it are atomic.
# Each is the session's own, and goes with its transaction.
_limited: Final[WeakSet[Connection]] = WeakSet()


def keep_idle_clock(connection: Connection) -> None:
    """Have the server count the idle time after each statement of many rows, from now on."""
    _limited.add(connection)
    dialect = type(connection.dialect)
    with _listening:
        if dialect not in _listened:
            event.listen(dialect, "do_executemany", _execute_many)
            _listened.add(dialect)


def _execute_many(
    cursor: Any, statement: str, parameters: Any, context: Any
) -> Literal[True] | None:
    """Execute it in place of SQLAlchemy, which calls the same method of the cursor."""
    connection = context.root_connection
    if connection not in _limited or keeps_writes(connection):
        return None
    block = PipelineBlock(connection.connection.driver_connection)
    run_steps(connection, block.enter())
    failure: BaseException | None = None
    try:
        cursor.executemany(statement, parameters)
    except BaseException as error:  # noqa: BLE001  # raised below
        failure = error
    run_steps(connection, block.leave(failure))
    return True
