"""The database of a test, and the actors who lock its documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy.orm import sessionmaker

from lab.running.shares import server_of
from lab.servers import Server
from sa_doclock import LockingSession
from tests.plugins.matrix import file_of
from tests.plugins.servers import SERVERS
from tests.support.actors import Actor
from tests.support.databases import PIPELINED, POOLERS, Database, new_sqlite_file, product
from tests.support.poolers import FOUND as FOUND_POOLERS


@pytest.fixture
def database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """Provide one database of the matrix; the test runs once for each."""
    column: str = request.param
    if column == PIPELINED:  # for every session, of any subclass
        defaults = LockingSession.__init__.__kwdefaults__
        assert defaults is not None
        monkeypatch.setitem(defaults, "pipeline", True)
    if product(column) == "sqlite":
        folder: Path = request.getfixturevalue("tmp_path")  # not created for tests on a server
        found = new_sqlite_file(column, folder)
    else:
        servers = request.config.stash[SERVERS]
        server = servers[server_of(product(column), file_of(request.node), servers)]
        assert isinstance(server, Server)  # otherwise the test was skipped
        found = _database_at(request, column, server)
    yield found
    found.close()
    if found.name == "mssql":
        found.sent.check()


def _database_at(request: pytest.FixtureRequest, column: str, server: Server) -> Database:
    if column not in POOLERS:
        return Database(column, server.url, server.version)
    found = request.config.stash[FOUND_POOLERS].find(column, server.url)
    pooler = found.server
    ways = {"direct_url": found.direct_url, "standby_url": found.standby_url}
    return Database(column, pooler.url, pooler.version, **ways)


@pytest.fixture
def session_factory(database: Database) -> sessionmaker[LockingSession]:
    return sessionmaker(database.engine(), class_=LockingSession)


@pytest.fixture
def enter(
    database: Database, session_factory: Callable[[], LockingSession]
) -> Iterator[Callable[[str], Actor[LockingSession]]]:
    """Create actors by name. All of them leave together, so none waits for another's lock."""
    cast: list[Actor[LockingSession]] = []

    def enter_actor(name: str) -> Actor[LockingSession]:
        cast.append(Actor(name, session_factory, database))
        return cast[-1]

    yield enter_actor
    for actor in cast:
        actor.leave()
    for actor in cast:
        actor.join()


@pytest.fixture
def alice(enter: Callable[[str], Actor[LockingSession]]) -> Actor[LockingSession]:
    """The actor that acts first in most tests."""
    return enter("alice")


@pytest.fixture
def bob(enter: Callable[[str], Actor[LockingSession]]) -> Actor[LockingSession]:
    """The actor that acts second, and waits for alice in most tests."""
    return enter("bob")


@pytest.fixture
def carol(enter: Callable[[str], Actor[LockingSession]]) -> Actor[LockingSession]:
    """The actor that acts third, if two are not enough."""
    return enter("carol")
