"""Locking sessions on tables filled with the rows of tests/support/models.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Base, refill
from tests.support.refill import FilledFiles, engine_for_refills

#: No wait ends by itself during a test: the other databases wait 50 s or longer by default.
_PATIENT: dict[str, dict[str, Any]] = {"sqlite": {"connect_args": {"timeout": 60}}}

#: The onlooker must not wait; at SQL Server's default level a read waits for writers.
_ONLOOKER: dict[str, dict[str, Any]] = {**_PATIENT, "mssql": {"isolation_level": "SNAPSHOT"}}

#: Databases whose default isolation level cannot protect a document.
_REPEATABLE_READ = {"mysql", "mariadb"}


class KeptRows:
    """Tables that a server keeps between tests, because creating them takes longer than a test.

    :param put: replaces all rows of the tables.
    """

    def __init__(self, metadata: sa.MetaData, put: Callable[[sa.Connection], None]) -> None:
        self._metadata, self._put = metadata, put
        self._files = FilledFiles(metadata, put)
        self._kept: dict[str, tuple[Database, sa.Engine]] = {}

    def fill(self, database: Database) -> Database:
        """Return the database with exactly these rows."""
        if database.name == "sqlite":  # a file for each test
            self._files.copy_to(database)
            return database
        if database.url not in self._kept:
            kept = database.kept()
            self._kept[database.url] = kept, engine_for_refills(kept)
        kept, engine = self._kept[database.url]
        try:
            with engine.begin() as connection:
                self._put(connection)
        except (sa.exc.DBAPIError, engine.dialect.loaded_dbapi.Error):
            # This is the first test, or another file dropped the tables.
            kept.create(self._metadata)
            with engine.begin() as connection:
                self._put(connection)
        return database

    def close(self) -> None:
        """Drop the tables."""
        for kept, _ in self._kept.values():
            kept.close()


def pytest_configure(config: pytest.Config) -> None:
    """Describe the marker of these tests."""
    reported = "read_committed: a document may be locked after something else was done"
    config.addinivalue_line("markers", reported)


@pytest.fixture(scope="session")
def kept_rows() -> Iterator[KeptRows]:
    """Keep the tables until the last test ends."""
    rows = KeptRows(Base.metadata, refill)
    yield rows
    rows.close()


@pytest.fixture
def documents(database: Database, kept_rows: KeptRows) -> Database:
    """Return the database with exactly the rows of tests/support/models.py."""
    return kept_rows.fill(database)


@pytest.fixture
def start_over(documents: Database) -> Callable[[], None]:
    """Return a function that restores the rows, for a test that runs many cases."""
    engine = documents.engine()

    def put_back() -> None:
        with engine.begin() as connection:
            refill(connection)

    return put_back


@pytest.fixture
def make_engine(documents: Database) -> Callable[..., sa.Engine]:
    """Return an engine factory whose connections wait for locks without a limit."""

    def make(**options: Any) -> sa.Engine:
        return documents.engine(**{**_PATIENT.get(documents.name, {}), **options})

    return make


@pytest.fixture
def read_committed(database: Database) -> dict[str, Any]:
    """Return options for an engine whose open transactions can lock a document."""
    return {"isolation_level": "READ COMMITTED"} if database.name in _REPEATABLE_READ else {}


@pytest.fixture
def engine(
    request: pytest.FixtureRequest,
    make_engine: Callable[..., sa.Engine],
    read_committed: dict[str, Any],
) -> sa.Engine:
    """Return the engine of the actors and of ``session``; see the marker ``read_committed``."""
    marked = request.node.get_closest_marker("read_committed")
    return make_engine(**(read_committed if marked else {}))


@pytest.fixture
def session_factory(engine: sa.Engine) -> sessionmaker[LockingSession]:
    """Return the factory for ``session`` and the actors' sessions."""
    return sessionmaker(engine, class_=LockingSession)


@pytest.fixture
def session(session_factory: Callable[[], LockingSession]) -> Iterator[LockingSession]:
    """Open a session for a test that needs only one."""
    with session_factory() as session:
        yield session


@pytest.fixture
def other(session_factory: Callable[[], LockingSession]) -> Iterator[LockingSession]:
    """Open a second session, for a test without waits."""
    with session_factory() as session:
        yield session


@pytest.fixture
def make_session(
    make_engine: Callable[..., sa.Engine],
) -> Iterator[Callable[..., LockingSession]]:
    """Return a session factory that accepts engine options."""
    made: list[LockingSession] = []

    def make(**options: Any) -> LockingSession:
        made.append(LockingSession(make_engine(**options)))
        return made[-1]

    yield make
    for session in made:
        session.close()


@pytest.fixture
def elsewhere(documents: Database) -> Callable[..., list[Any]]:
    """Return a function that runs and commits statements in a separate transaction."""
    engine = documents.engine(**_ONLOOKER.get(documents.name, {}))

    def run(*statements: sa.Executable) -> list[Any]:
        rows: list[Any] = []
        with engine.begin() as connection:
            for statement in statements:
                result = connection.execute(statement)
                rows = [tuple(row) for row in result] if result.returns_rows else []
        return rows

    return run


@pytest.fixture
def dave(documents: Database) -> Iterator[Callable[..., Actor[LockingSession]]]:
    """Add an actor whose sessions are made differently."""
    cast: list[Actor[LockingSession]] = []

    def enter_dave(factory: Callable[[], LockingSession]) -> Actor[LockingSession]:
        cast.append(Actor("dave", factory, documents))
        return cast[-1]

    yield enter_dave
    for actor in cast:
        actor.leave()
    for actor in cast:
        actor.join()
