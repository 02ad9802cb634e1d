"""The connections that wait for a lock, as their server tells it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from ..dialects import side_connection, strategy_class
from ..dialects.base import LockMonitoring


def monitoring_of(bind: Engine | Connection) -> LockMonitoring | None:
    """Return what asks this server about waits; None where there is none that can be asked."""
    found = strategy_class(bind.dialect)
    return None if found is None else found.monitoring


def locks_database(bind: Engine | Connection) -> bool:
    """Return whether every lock is one on the whole database, as on SQLite."""
    found = strategy_class(bind.dialect)
    return found is not None and found.locks_database


def connection_id(connection: Connection) -> int | None:
    """Return the server's id of this connection; nothing is sent."""
    monitoring = monitoring_of(connection)
    if monitoring is None or connection.closed or connection.invalidated:
        return None
    with suppress(Exception):  # its session runs in another thread, and may end it now
        return monitoring.connection_id(connection)
    return None


class ServerWaits:
    """Asks one server who waits for whom, over a connection of its own.

    Under asyncio the methods run in a greenlet of SQLAlchemy's.
    """

    def __init__(self, engine: Engine) -> None:
        self._stack = ExitStack()
        self._connection = self._stack.enter_context(side_connection(engine, {}))
        monitoring = monitoring_of(self._connection)
        assert monitoring is not None  # the caller has looked
        self._monitoring = monitoring

    def blockers(self) -> Mapping[int, set[int]] | None:
        """Return the ids of those that wait, each with the ids of those that it waits for.

        None: the account lacks the privilege, or the server does not answer.
        """
        found: dict[int, set[int]] = {}
        try:
            for wait in self._monitoring.waits(self._connection):
                found.setdefault(wait.waiter, set()).add(wait.blocker)
            self._connection.rollback()  # some servers show one moment for a whole transaction
        except DBAPIError:
            with suppress(DBAPIError):
                self._connection.rollback()
            return None
        return found

    def close(self) -> None:
        """Close the connection."""
        with suppress(DBAPIError):
            self._stack.close()


def blocked_by(starts: set[int], blockers: Mapping[int, set[int]]) -> set[int]:
    """Return all that these connections wait for, those behind other waiters included."""
    reached: set[int] = set()
    front = set(starts)
    while front:
        front = {one for waiter in front for one in blockers.get(waiter, ())} - reached
        reached |= front
    return reached
