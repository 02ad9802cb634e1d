"""Sessions on the documents of this package."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession
from tests.integration.checkouts.models import CHECKOUTS, Article, Base, Line, Memo, Order
from tests.support.databases import Database

Factory = sessionmaker[LockingSession]


@pytest.fixture
def engine(database: Database) -> sa.Engine:
    """Make the tables, with some documents of each class."""
    database.create(Base.metadata)
    innodb = database.name in ("mysql", "mariadb")  # whose default is REPEATABLE READ
    engine = database.engine(**({"isolation_level": "READ COMMITTED"} if innodb else {}))
    with LockingSession(engine, guard="off") as session:
        session.add_all([Order(id=1, lines=[Line(id=1, value=0)]), Order(id=2), Order(id=3)])
        session.add_all([Article(code="ABC"), Memo(id=1)])
        session.commit()
    return engine


@pytest.fixture
def factory(engine: sa.Engine, database: Database) -> Factory:
    """Return what makes the sessions."""
    pipeline = database.column == "postgresql-pipeline"
    return sessionmaker(engine, class_=LockingSession, checkouts=CHECKOUTS, pipeline=pipeline)


@pytest.fixture
def session_factory(factory: Factory) -> Factory:
    """Return what makes the sessions of the actors."""
    return factory


@pytest.fixture
def session(factory: Factory) -> Iterator[LockingSession]:
    """Return a session."""
    with factory() as session:
        yield session


@pytest.fixture
def other(factory: Factory) -> Iterator[LockingSession]:
    """Return the session of somebody else."""
    with factory() as session:
        yield session
