"""Pipelined sessions, on separate tables, through a proxy that counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from lab.running.kept import KeptTables
from sa_doclock import LockingSession
from sa_doclock.dialects import strategy_for
from tests.integration.pipeline.models import Base, Bill, fill
from tests.integration.timeouts.ways import Wire, over, wire_to
from tests.support.databases import Database

Sessions = Callable[..., LockingSession]


def pytest_configure(config: pytest.Config) -> None:
    """Describe the marker of these tests."""
    config.addinivalue_line("markers", "alters_tables: the next test has new ones")


@pytest.fixture(scope="module")
def kept() -> Iterator[KeptTables]:
    """Keep the tables until the last test of a file ends: other tests need them to be missing."""
    tables = KeptTables(Base.metadata, fill)
    yield tables
    tables.close()


@pytest.fixture
def bills(
    request: pytest.FixtureRequest, database: Database, kept: KeptTables
) -> Iterator[Database]:
    """Return the database with the rows of models.py."""
    kept.put_rows(database)
    yield database
    if request.node.get_closest_marker("alters_tables"):
        kept.close()


@pytest.fixture
def wire(bills: Database) -> Iterator[Wire]:
    """Run a proxy in front of the server."""
    wire = wire_to(bills.url)
    yield wire
    wire.close()


@pytest.fixture
def engine(bills: Database, wire: Wire) -> Iterator[sa.Engine]:
    """Return a warmed-up engine with one connection, which is in the pool."""
    through, one = over(wire, bills.url), {"pool_size": 1, "max_overflow": 0}
    engine = sa.create_engine(through, connect_args=bills.connect_args, **one)
    strategy = strategy_for(engine)
    with engine.connect() as connection:
        strategy.check_table(connection, Base.metadata.tables[Bill.__tablename__])
    yield engine
    engine.dispose()


@pytest.fixture
def make(engine: sa.Engine) -> Iterator[Sessions]:
    """Return a maker of sessions, pipelined by default, that are closed at the end."""
    made: list[LockingSession] = []

    def make(**options: Any) -> LockingSession:
        made.append(sessionmaker(engine, class_=LockingSession)(**{"pipeline": True, **options}))
        return made[-1]

    yield make
    for session in made:
        session.close()


@pytest.fixture
def session(make: Sessions) -> LockingSession:
    return make()


@pytest.fixture
def elsewhere(bills: Database) -> Iterator[sa.Engine]:
    """Return an engine without the proxy, which commits each statement."""
    engine = bills.observer()
    yield engine
    engine.dispose()


@pytest.fixture
def start_over(bills: Database) -> Callable[[], None]:
    """Return a function that restores the rows."""
    engine = bills.engine()

    def put_back() -> None:
        with engine.begin() as connection:
            fill(connection)

    return put_back
