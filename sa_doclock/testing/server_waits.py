"""The connections that wait for a lock, as their server tells it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any

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


class ServersAsked:
    """The servers of several engines, each of which is asked over one connection.

    :param run: runs a function of SQLAlchemy's on an asynchronous engine.
    """

    def __init__(self, run: Callable[[Callable[[], Any]], Any]) -> None:
        self._run = run
        self._servers: dict[Engine, ServerWaits | None] = {}

    def blockers(self, engine: Engine) -> Mapping[int, set[int]] | None:
        """Return who waits for whom; None where the server cannot be asked."""
        if engine not in self._servers:
            known = monitoring_of(engine) is not None
            self._servers[engine] = self.ask(engine, lambda: ServerWaits(engine)) if known else None
        server = self._servers[engine]
        found: Mapping[int, set[int]] | None
        found = None if server is None else self.ask(engine, server.blockers)
        return found

    def ask(self, engine: Engine, question: Callable[[], Any]) -> Any:
        """Call a function that uses this engine."""
        return self._run(question) if engine.dialect.is_async else question()

    def close(self) -> None:
        """Close the connections."""
        for engine, server in self._servers.items():
            if server is not None:
                self.ask(engine, server.close)


def blocked_by(starts: set[int], blockers: Mapping[int, set[int]]) -> set[int]:
    """Return all that these connections wait for, those behind other waiters included."""
    reached: set[int] = set()
    front = set(starts)
    while front:
        front = {one for waiter in front for one in blockers.get(waiter, ())} - reached
        reached |= front
    return reached
