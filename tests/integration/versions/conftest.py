"""Sessions on the documents of this package."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession
from tests.integration.versions.models import KINDS, Base
from tests.support.databases import Database


@pytest.fixture
def engine(database: Database) -> Iterator[sa.Engine]:
    """Make the tables, with document 1 of each kind and its two lines."""
    engine = (
        database.engine(isolation_level="READ COMMITTED")
        if database.name in ("mysql", "mariadb")
        else database.engine()
    )
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    with LockingSession(engine, guard="off") as session:
        for header, line in KINDS:
            values = [line(id=1, value=10), line(id=2, value=20)]
            session.add(header(id=1, total=30, lines=values))
            session.add(header(id=2, total=0))
        session.commit()
    yield engine
    Base.metadata.drop_all(engine)
    engine.dispose()


@pytest.fixture
def factory(engine: sa.Engine) -> sessionmaker[LockingSession]:
    """Return what makes the sessions."""
    return sessionmaker(engine, class_=LockingSession)


@pytest.fixture
def session(factory: sessionmaker[LockingSession]) -> Iterator[LockingSession]:
    """Return a session."""
    with factory() as session:
        yield session


@pytest.fixture
def other(factory: sessionmaker[LockingSession]) -> Iterator[LockingSession]:
    """Return the session of somebody else."""
    with factory() as session:
        yield session
