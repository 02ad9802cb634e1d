"""lock_waits(): the waits for locks on a server at this moment."""

from __future__ import annotations

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from ...dialects import product_of, side_connection, strategy_class
from ...dialects.base import LockStrategy
from ...dialects.error_codes import code_of
from ...dialects.monitoring import describe_connections
from ...errors import LockNotSupported
from ...wait_info import LockWait
from .wait_graph import WaitGraph


def lock_waits(bind: Engine | Connection) -> list[LockWait]:
    """Return the waits for locks at this moment: of the whole server, not of this program alone.

    They are read over a connection of its own, made as the engine makes its connections, which
    needs no place in the pool and waits for no lock.

    A queue of 200 for one lock is about 400 waits: each waiter with the holder, and with the last
    one of those in front of it.

    :returns: those that have waited longest first; an empty list where nobody waits.  MariaDB
        answers from a copy that can be older than 0.1 s where others ask all the time.
    :raises LockNotSupported: SQLite, which has no server to ask; or the account lacks a
        privilege, which the text names.
    :raises TypeError: neither an Engine nor a Connection; see :func:`async_lock_waits`.
    """
    if not isinstance(bind, (Engine, Connection)):
        raise TypeError(f"lock_waits() needs an Engine or a Connection, not {bind!r}")
    known = strategy_class(bind.dialect)
    if known is None or known.monitoring is None:
        raise LockNotSupported(
            f"{product_of(bind.dialect)} has no server that tells who waits for whom"
        )
    with side_connection(bind.engine, {}) as connection:
        known = strategy_class(connection.dialect)  # only now MariaDB is told from MySQL
        assert known is not None
        assert known.monitoring is not None
        strategy, monitoring = known(connection.dialect), known.monitoring
        try:
            graph = WaitGraph(monitoring.waits(connection))
            described = describe_connections(monitoring, connection, graph.connections)
        except DBAPIError as error:
            needed = missing_privilege(strategy, error)
            if needed is None:
                raise
            raise LockNotSupported(f"lock_waits() on {strategy.name}: {needed}") from error
    waits = [
        LockWait(described[waiter], described[blocker], described[root], table, key, seconds)
        for (waiter, blocker, table, key, seconds), root in graph.waits()
    ]
    return sorted(waits, key=lambda wait: -(wait.seconds or 0))


def missing_privilege(strategy: LockStrategy, error: DBAPIError) -> str | None:
    """Return what the account needs to see who waits; None where the error is another."""
    assert strategy.monitoring is not None
    code = code_of(strategy.errors, error)
    return strategy.monitoring.privilege_errors.get(code or 0)
