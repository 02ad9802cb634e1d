"""Sessions on the documents of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, sessionmaker

from lab.running.kept import KeptTables
from sa_doclock import LockingSession
from tests.integration.checkouts.models import CHECKOUTS, Article, Base, Line, Memo, Order
from tests.support.databases import Database

Factory = sessionmaker[LockingSession]


def fill(connection: sa.Connection) -> None:
    """Store some documents of each class."""
    with Session(connection) as session:
        session.add_all([Order(id=1, lines=[Line(id=1, value=0)]), Order(id=2), Order(id=3)])
        session.add_all([Article(code="ABC"), Memo(id=1)])
        session.flush()


@pytest.fixture(scope="module")
def kept() -> Iterator[KeptTables]:
    """Keep the tables until the last test of a file ends: other tests need them to be missing."""
    tables = KeptTables(Base.metadata, fill)
    yield tables
    tables.close()


@pytest.fixture
def engine(database: Database, kept: KeptTables) -> sa.Engine:
    """Fill the tables, and make the engine of all sessions."""
    kept.put_rows(database)
    innodb = database.name in ("mysql", "mariadb")  # their default is REPEATABLE READ
    return database.engine(**({"isolation_level": "READ COMMITTED"} if innodb else {}))


@pytest.fixture
def factory(engine: sa.Engine, database: Database) -> Factory:
    pipeline = database.column == "postgresql-pipeline"
    return sessionmaker(engine, class_=LockingSession, checkouts=CHECKOUTS, pipeline=pipeline)


@pytest.fixture
def session_factory(factory: Factory) -> Factory:
    return factory


@pytest.fixture
def session(factory: Factory) -> Iterator[LockingSession]:
    with factory() as session:
        yield session


@pytest.fixture
def other(factory: Factory) -> Iterator[LockingSession]:
    """Return another person's session."""
    with factory() as session:
        yield session
