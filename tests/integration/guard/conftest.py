"""Guarded sessions on tables with the rows of tests/integration/guard/models.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession
from tests.integration.guard.models import Base, refill
from tests.support.databases import Database
from tests.support.refill import FilledFiles, engine_for_refills

Kept = dict[str, tuple[Database, sa.Engine]]
_FILES = FilledFiles(Base.metadata, refill)


@pytest.fixture(scope="session")
def kept() -> Iterator[Kept]:
    """Keep the tables of each database until the last test ends."""
    databases: Kept = {}
    yield databases
    for database, _ in databases.values():
        database.close()


@pytest.fixture
def documents(database: Database, kept: Kept) -> Database:
    """Return the database with exactly the rows of tests/integration/guard/models.py."""
    if database.name == "sqlite":
        _FILES.copy_to(database)
        return database
    # By URL: a process may run the tests of both servers of a database.
    if database.url not in kept:
        own = database.kept()
        own.create(Base.metadata)
        kept[database.url] = own, engine_for_refills(own)
    with kept[database.url][1].begin() as connection:
        refill(connection)
    return database


@pytest.fixture
def engine(documents: Database) -> sa.Engine:
    """Return the engine of all sessions; its open transactions can lock a document."""
    own = {"isolation_level": "READ COMMITTED"} if documents.name in ("mysql", "mariadb") else {}
    return documents.engine(**own)


@pytest.fixture
def make_session(engine: sa.Engine) -> Iterator[Callable[..., LockingSession]]:
    """Return a maker of sessions: ``make_session(guard="warn")``."""
    made: list[LockingSession] = []
    maker = sessionmaker(engine, class_=LockingSession)

    def make(**options: Any) -> LockingSession:
        made.append(maker(**options))
        return made[-1]

    yield make
    for session in made:
        session.close()


@pytest.fixture
def session(make_session: Callable[..., LockingSession]) -> LockingSession:
    """Open a session with the default guard."""
    return make_session()


@pytest.fixture
def stored(documents: Database) -> Callable[[Any, Any], Any]:
    """Return a function that reads one column of a row by its key, in a separate transaction."""
    engine = documents.engine()

    def read(attribute: Any, ident: Any) -> Any:
        with sa.orm.Session(engine) as session:
            entity: Any = attribute.class_
            found = session.get(entity, ident)
            return None if found is None else getattr(found, attribute.key)

    return read
