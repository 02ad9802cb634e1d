"""Sessions on the documents of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, sessionmaker

from lab.running.kept import KeptTables
from sa_doclock import LockingSession
from tests.integration.versions.models import KINDS, Base
from tests.support.databases import Database


def fill(connection: sa.Connection) -> None:
    """Store document 1 of each kind with its two lines, and document 2."""
    with Session(connection) as session:
        for header, line in KINDS:
            values = [line(id=1, value=10), line(id=2, value=20)]
            session.add(header(id=1, total=30, lines=values))
            session.add(header(id=2, total=0))
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
def factory(engine: sa.Engine) -> sessionmaker[LockingSession]:
    return sessionmaker(engine, class_=LockingSession)


@pytest.fixture
def session(factory: sessionmaker[LockingSession]) -> Iterator[LockingSession]:
    with factory() as session:
        yield session


@pytest.fixture
def other(factory: sessionmaker[LockingSession]) -> Iterator[LockingSession]:
    """Return another person's session."""
    with factory() as session:
        yield session
