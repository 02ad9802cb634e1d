"""The connections that wait for a lock: as their server reports, or for the write lock of a SQLite file.

SQLite has no list of waits, and many statements take a lock: BEGIN IMMEDIATE, the UPDATE of a
flush, the program's own text.  A test asks about a waiter whose statement has already begun.  So
from the import of the test kit on, the statements of all engines are recorded: each connection of a
database that locks as a whole has in its ``info`` its current statement, and whether it has the
write lock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from contextlib import ExitStack, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError

from ..dialects import side_connection, strategy_class
from ..dialects.base import Locked, LockMonitoring

FIRST_LOOK: Final = 0.005
"""Seconds without a sign of life after which the server is asked."""

NEXT_LOOK: Final = 0.12
"""Seconds between two questions: MariaDB answers from a copy that it renews only when nobody has
read it for 0.1 s (CACHE_MIN_IDLE in its trx0i_s.cc)."""

LONG_STATEMENT: Final = 1.0
"""Seconds after which a statement counts as waiting for a lock, whatever the server reports: it may
not know, or not show it to this account.
"""


def monitoring_of(bind: Engine | Connection) -> LockMonitoring | None:
    """Return the object that asks this server about waits, or None if it cannot be asked."""
    found = strategy_class(bind.dialect)
    return None if found is None else found.monitoring


def locks_database(bind: Engine | Connection) -> bool:
    """Return whether every lock covers the whole database, as on SQLite."""
    found = strategy_class(bind.dialect)
    return found is not None and found.statements.locked is Locked.DATABASE


_THIS_MACHINE: Final = frozenset({None, "", "localhost", "127.0.0.1", "::1"})


def server_of(engine: Engine) -> Hashable:
    """Return the same value for all engines of one server, or of one SQLite file, by their URLs.

    A program may create an engine for each call.  Engines that differ only in ``creator=`` look
    alike.
    """
    url = engine.url
    if locks_database(engine):
        database = url.database
        return (engine.dialect.name, Path(database).resolve() if database else None)
    host = None if url.host in _THIS_MACHINE else url.host
    return (engine.dialect.name, host, url.port, *sorted(url.query.items()))


is_kit_asking: ContextVar[bool] = ContextVar("sa_doclock.testing.asking", default=False)
"""True in a thread or task in which the kit itself asks a server."""


def connection_id(connection: Connection) -> int | None:
    """Return the server's id of this connection; nothing is sent."""
    monitoring = monitoring_of(connection)
    if monitoring is None or connection.closed or connection.invalidated:
        return None
    with suppress(Exception):  # its session runs in another thread, which may be ending it
        return monitoring.connection_id(connection)
    return None


class ServersAsked:
    """The servers of several engines, each asked over a separate connection.

    :param run: runs a function of SQLAlchemy on an asynchronous engine.
    """

    def __init__(self, run: Callable[[Callable[[], Any]], Any]) -> None:
        self._run = run
        self._opened: dict[Hashable, tuple[Connection, ExitStack]] = {}

    def blockers(self, engine: Engine) -> Mapping[int, set[int]] | None:
        """Return the ids of the waiters, each with the ids of its blockers.

        None: the server cannot tell, the account lacks the privilege, or the server does not
        answer.
        """
        found: Mapping[int, set[int]] | None = None
        if monitoring_of(engine) is not None:
            found = self.ask(engine, lambda: _blockers(self._connection(engine)))
        return found

    def ask(self, engine: Engine, question: Callable[[], Any]) -> Any:
        """Call a function that uses this engine; under asyncio, in a greenlet of SQLAlchemy."""
        asking = is_kit_asking.set(True)
        try:
            return self._run(question) if engine.dialect.is_async else question()
        finally:
            is_kit_asking.reset(asking)

    def close(self) -> None:
        """Close the connections."""
        for connection, stack in self._opened.values():
            with suppress(DBAPIError):
                self.ask(connection.engine, stack.close)

    def _connection(self, engine: Engine) -> Connection:
        key = (server_of(engine), engine.dialect.driver)
        if key not in self._opened:
            stack = ExitStack()
            self._opened[key] = stack.enter_context(side_connection(engine, {})), stack
        return self._opened[key][0]


def _blockers(connection: Connection) -> Mapping[int, set[int]] | None:
    monitoring = monitoring_of(connection)
    assert monitoring is not None  # checked by the caller
    found: dict[int, set[int]] = {}
    try:
        for waiter, blocker, *_ in monitoring.waits(connection):
            found.setdefault(waiter, set()).add(blocker)
        connection.rollback()  # some servers show one snapshot for a whole transaction
    except DBAPIError:
        with suppress(DBAPIError):
            connection.rollback()
        return None
    return found


def blocked_by(starts: set[int], blockers: Mapping[int, set[int]]) -> set[int]:
    """Return everything that these connections wait for, directly or behind other waiters."""
    reached: set[int] = set()
    front = set(starts)
    while front:
        front = {blocker for waiter in front for blocker in blockers.get(waiter, ())} - reached
        reached |= front
    return reached


COMMIT: Final = "COMMIT"
LONG_COMMIT: Final = 0.25
"""Seconds after which a COMMIT on SQLite counts as waiting for a reader, which nothing names."""

_RUNS: Final = "sa_doclock.testing.runs"
_HAS_LOCK: Final = "sa_doclock.testing.has_lock"
_NEEDS_NO_LOCK: Final = re.compile(
    r"\s*(SELECT|PRAGMA(?! incremental_vacuum| user_version =)|SAVEPOINT|RELEASE|ROLLBACK"
    r"|BEGIN( DEFERRED)?\s*$)",
    re.IGNORECASE,
)


def needs_file_lock(statement: str) -> bool:
    """Return whether SQLite runs this statement under the write lock of the file."""
    return _NEEDS_NO_LOCK.match(statement) is None


def holds_file(connection: Connection, *, unknown: bool = True) -> bool:
    """Return whether this connection, which another thread may use, has the file's write lock.

    :param unknown: the answer for a transaction that began before the kit's import.
    """
    with suppress(Exception):  # already closed
        return bool(connection.info.get(_HAS_LOCK, unknown)) and _in_transaction(connection)
    return False


def runs_for_file_lock(connection: Connection) -> bool:
    """Return whether this connection runs a statement that needs the lock, without having it."""
    with suppress(Exception):
        statement = connection.info.get(_RUNS)
        needs = statement is not None and needs_file_lock(statement)
        return needs and not holds_file(connection, unknown=False)
    return False


def waits_for_file(statement: str | None, quiet: float, *, other_holds: bool) -> bool:
    """Return whether a connection waits for the file, judging by its current statement.

    :param quiet: the seconds for which it has run.
    :param other_holds: the other one has the file's write lock.
    """
    if statement is None:
        return False
    if statement == COMMIT:
        return quiet >= LONG_COMMIT
    return needs_file_lock(statement) and other_holds


def _in_transaction(connection: Connection) -> bool:
    driver: Any = connection.connection.driver_connection
    return bool(driver.in_transaction)


@event.listens_for(Engine, "before_cursor_execute")
def _note_begun(connection: Connection, _cursor: Any, statement: str, *_: object) -> None:
    if locks_database(connection):
        if not _in_transaction(connection):  # the holder has ended, however it did
            connection.info[_HAS_LOCK] = False
        connection.info[_RUNS] = statement


@event.listens_for(Engine, "after_cursor_execute")
def _note_ended(connection: Connection, _cursor: Any, statement: str, *_: object) -> None:
    if locks_database(connection):
        connection.info[_RUNS] = None
        if needs_file_lock(statement) and _in_transaction(connection):
            connection.info[_HAS_LOCK] = True


@event.listens_for(Engine, "handle_error")
def _note_failed(context: ExceptionContext) -> None:
    connection = context.connection
    if connection is not None and locks_database(connection) and not connection.invalidated:
        connection.info[_RUNS] = None
