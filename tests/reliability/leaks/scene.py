"""The scene of the cycles: the documents of the stress fixture, and sessions that lock them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockOptions
from sa_doclock.tools.cli.workload.tables import NAMES, Document
from tests.support.databases import Database

DOCUMENTS = 5
"""Documents 0 to 4 are there, each with five details; a test puts them there with ``fill()``."""

STATES = {ident: dict.fromkeys(NAMES, ident) for ident in range(DOCUMENTS)}

#: A commit need not wait for the disk, nor a deadlock for its second; and sqlite3 keeps 128
#: statements of each connection, of which one with another number in it is another one.
CONNECT_ARGS: dict[str, dict[str, Any]] = {
    "postgresql": {"options": "-c synchronous_commit=off -c deadlock_timeout=10ms"},
    "sqlite": {"cached_statements": 8},
}


def new_engine(database: Database, **options: Any) -> sa.Engine:
    """Make an engine that nobody else knows of, for as many commits as a second can hold."""
    connect_args = {**CONNECT_ARGS.get(database.name, {}), **options.pop("connect_args", {})}
    engine = sa.create_engine(database.url, connect_args=connect_args, **options)
    if database.name == "sqlite":
        sa.event.listen(engine, "connect", _need_not_reach_the_disk)
    return engine


def _need_not_reach_the_disk(dbapi_connection: Any, _record: object) -> None:
    dbapi_connection.execute("PRAGMA synchronous = OFF")


@dataclass
class Scene:
    """The objects that a cycle works with.

    :ivar compiled: the cache of the engine's statements, one without an upper limit.
    :ivar number: of the cycle, from 0.
    """

    database: Database
    engine: sa.Engine
    compiled: dict[Any, Any]
    number: int = 0

    def __post_init__(self) -> None:
        self.sessions = sessionmaker(self.engine, class_=LockingSession)

    @cached_property
    def connection(self) -> sa.Connection:
        """One for all cycles that ask for it."""
        return self.engine.connect()

    @cached_property
    def session(self) -> LockingSession:
        """One for all cycles that ask for it."""
        return self.sessions()

    def close(self) -> None:
        """Let go of what goes on from cycle to cycle."""
        self.session.close()
        self.connection.close()

    @property
    def ident(self) -> int:
        """A document, each time the next one."""
        return self.number % DOCUMENTS

    @property
    def seconds(self) -> float:
        """A time to wait, each time another one."""
        return 10 + self.number / 1000

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let another session hold the document."""
        with self.sessions() as holder:
            holder.get_one_entity(Document, self.ident, LockOptions.ForUpdate)
            yield


Way = Callable[[Scene], None]
"""One cycle: locks and lets go, or fails; what is kept of it after that is a leak."""
