"""The registry of actions that run before a connection returns to its pool.

A named lock of MySQL, or a session setting, outlives COMMIT and ROLLBACK and would return to the
pool with the connection.  The action that removes it is registered before the statement that sets
it is sent.  So it runs whatever happens in between, and the pool closes the connection if it fails.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from threading import Lock
from typing import Final

from sqlalchemy import Connection, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry, Pool, PoolResetState

from ..sqlalchemy_internals import guard_finalizers
from .reset import forget_end

# In Connection.info, which SQLAlchemy clears when the server connection closes.  No other public
# place lives as long, and is still there after an abandoned session is collected.
_ACTIONS: Final = "sa_doclock.on_return"
_listening: Final = Lock()


class ReturnAction:
    """One action; the object is also the key to withdraw it.

    :param position: actions run by ascending position; within one, the last registered first.
    :param run: the pool closes the connection if this raises.
    """

    __slots__ = ("position", "run")

    def __init__(
        self, position: int, run: Callable[[ConnectionPoolEntry, DBAPIConnection], object]
    ) -> None:
        self.position = position
        self.run = run


class CallFunction(ReturnAction):
    """Call a function, before anything is sent over the connection.

    :param function: must not keep the connection alive.
    """

    __slots__ = ()

    def __init__(self, function: Callable[[], None]) -> None:
        super().__init__(0, lambda _record, _connection: function())


ROLLBACK: Final = ReturnAction(1, lambda _record, connection: connection.rollback())
"""Send a ROLLBACK.

If a listener or Ctrl-C prevents COMMIT, SQLAlchemy still believes that the transaction ended.  The
next user of the connection would commit these writes.
"""

GUARD_ISOLATION_LEVEL: Final = ReturnAction(2, lambda record, _connection: guard_finalizers(record))
"""Close the connection if SQLAlchemy fails to restore its isolation level.

SQLAlchemy restores it after everything that the pool protects.  The driver's error would come from
a commit that has succeeded, and the pool would count the connection as in use for ever.
"""


class ExecuteStatement(ReturnAction):
    """Execute a statement.

    :param statement: without parameters, because drivers write them in different styles.
    """

    __slots__ = ("statement",)

    def __init__(self, statement: str) -> None:
        def run(record: ConnectionPoolEntry, dbapi_connection: DBAPIConnection) -> None:
            forget_end(record)
            _execute(dbapi_connection, statement)

        super().__init__(3, run)
        self.statement = statement


def _execute(dbapi_connection: DBAPIConnection, statement: str) -> None:
    with closing(dbapi_connection.cursor()) as cursor:
        cursor.execute(statement)


def on_return(connection: Connection, action: ReturnAction) -> None:
    """Register an action that runs once, before the connection returns to its pool.

    Registering the same object again changes nothing.  A connection that is closed or lost needs no
    action, and its actions are dropped.
    """
    if not (connection.closed or connection.invalidated):
        actions_of(connection)[action] = None


def actions_of(connection: Connection) -> dict[ReturnAction, None]:
    """Return the registered actions of an open connection; callers may add to them."""
    info = connection.info
    if _ACTIONS not in info:  # the first action of this server connection
        _listen_to_pools()
        info[_ACTIONS] = {}
    actions: dict[ReturnAction, None] = info[_ACTIONS]
    return actions


def is_registered(connection: Connection, action: ReturnAction) -> bool:
    """Return whether the action is registered, and has not run."""
    return action in connection.info.get(_ACTIONS, ())


def withdraw(connection: Connection, action: ReturnAction) -> None:
    """Drop an action, if it is registered and has not run."""
    if not (connection.closed or connection.invalidated):
        connection.info.get(_ACTIONS, {}).pop(action, None)


def execute_now(connection: Connection, action: ExecuteStatement) -> None:
    """Execute a registered statement early; if it fails, invalidate the connection.

    Not by SQLAlchemy, so that a transaction that refuses all statements does not refuse it.
    """
    if connection.closed or connection.invalidated or not is_registered(connection, action):
        return
    withdraw(connection, action)
    try:
        dbapi_connection = connection.connection.dbapi_connection
        assert dbapi_connection is not None  # it is not invalidated
        _execute(dbapi_connection, action.statement)
    except BaseException as error:
        connection.invalidate(error)
        if not isinstance(error, Exception):
            raise


def execute_statements_now(connection: Connection) -> None:
    """Execute the registered statements on an open connection that its owner continues to use.

    If one fails, the connection is invalidated, and the others are dropped with it.
    """
    for action in [*reversed(connection.info.get(_ACTIONS, {}))]:
        if isinstance(action, ExecuteStatement):
            execute_now(connection, action)


def _run_actions(
    dbapi_connection: DBAPIConnection,
    record: ConnectionPoolEntry | None,
    reset_state: PoolResetState,
) -> None:
    # Runs before the pool's own ROLLBACK, if that is still to come.
    if record is None or reset_state.terminate_only:
        return  # it is closed next
    actions = record.info.get(_ACTIONS)  # the only cost for a connection without a lock
    if not actions:
        return
    due: list[ReturnAction] = [*reversed(actions)]  # the last registered first
    due.sort(key=lambda action: action.position)  # a stable sort
    actions.clear()
    for action in due:
        action.run(record, dbapi_connection)


def _listen_to_pools() -> None:
    # From the process's first action on, listen to all pools.  Listening to one pool is unsafe:
    # SQLAlchemy iterates over its listeners, a deque, without a lock.  If ours were added while a
    # "reset" listener of the program sends a statement, "deque mutated during iteration" would
    # close that connection.  Listeners on the class Pool have a deque of their own, which is empty
    # in nearly all programs.
    # Also, after Engine.dispose(), a connection returns to a pool that its engine no longer has.
    with _listening:
        if not event.contains(Pool, "reset", _run_actions):
            event.listen(Pool, "reset", _run_actions)
