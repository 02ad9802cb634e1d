"""The connections that wait for a lock, as their server tells it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any, Final

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from ..dialects import side_connection, strategy_class
from ..dialects.base import LockMonitoring

FIRST_LOOK: Final = 0.005
"""Seconds without a sign of life after which the server is asked."""

NEXT_LOOK: Final = 0.12
"""Seconds between two questions: MariaDB answers from a copy that it renews only when nobody has
read it for 0.1 s (CACHE_MIN_IDLE in its trx0i_s.cc)."""

LONG_STATEMENT: Final = 1.0
"""Seconds after which a statement waits for a lock, whatever the server tells: it may not know, or
not show it to this account."""


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


class ServersAsked:
    """The servers of several engines, each of which is asked over one connection of its own.

    :param run: runs a function of SQLAlchemy's on an asynchronous engine.
    """

    def __init__(self, run: Callable[[Callable[[], Any]], Any]) -> None:
        self._run = run
        self._connections: dict[Engine, Connection] = {}
        self._opened: list[tuple[Engine, ExitStack]] = []

    def blockers(self, engine: Engine) -> Mapping[int, set[int]] | None:
        """Return the ids of those that wait, each with the ids of those that it waits for.

        None: nobody tells who waits, the account lacks the privilege, or the server does not answer.
        """
        found: Mapping[int, set[int]] | None = None
        if monitoring_of(engine) is not None:
            found = self.ask(engine, lambda: _blockers(self._connection(engine)))
        return found

    def ask(self, engine: Engine, question: Callable[[], Any]) -> Any:
        """Call a function that uses this engine; under asyncio, in a greenlet of SQLAlchemy's."""
        return self._run(question) if engine.dialect.is_async else question()

    def close(self) -> None:
        """Close the connections."""
        for engine, stack in self._opened:
            with suppress(DBAPIError):
                self.ask(engine, stack.close)

    def _connection(self, engine: Engine) -> Connection:
        if engine not in self._connections:
            stack = ExitStack()
            self._connections[engine] = stack.enter_context(side_connection(engine, {}))
            self._opened.append((engine, stack))
        return self._connections[engine]


def _blockers(connection: Connection) -> Mapping[int, set[int]] | None:
    monitoring = monitoring_of(connection)
    assert monitoring is not None  # the caller has looked
    found: dict[int, set[int]] = {}
    try:
        for wait in monitoring.waits(connection):
            found.setdefault(wait.waiter, set()).add(wait.blocker)
        connection.rollback()  # some servers show one moment for a whole transaction
    except DBAPIError:
        with suppress(DBAPIError):
            connection.rollback()
        return None
    return found


def blocked_by(starts: set[int], blockers: Mapping[int, set[int]]) -> set[int]:
    """Return all that these connections wait for, those behind other waiters included."""
    reached: set[int] = set()
    front = set(starts)
    while front:
        front = {one for waiter in front for one in blockers.get(waiter, ())} - reached
        reached |= front
    return reached
