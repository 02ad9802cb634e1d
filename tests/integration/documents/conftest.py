"""Sessions on the documents of this package, and what they send."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession
from tests.integration.documents.models import Base
from tests.integration.documents.rows import refill
from tests.support.databases import Database
from tests.support.refill import FilledFiles, engine_for_refills

#: No wait ends by itself while a test looks: the other databases have 50 s or more already.
_PATIENT: dict[str, dict[str, Any]] = {"sqlite": {"connect_args": {"timeout": 60}}}

Kept = dict[str, tuple[Database, sa.Engine]]
_FILES = FilledFiles(Base.metadata, refill)


@pytest.fixture(scope="session")
def kept() -> Iterator[Kept]:
    """Keep the tables of a server from test to test: making them takes longer than a test."""
    databases: Kept = {}
    yield databases
    for database, _ in databases.values():
        database.close()


@pytest.fixture
def documents(database: Database, kept: Kept) -> Database:
    """Return the database with the rows of rows.py in it, and no others."""
    if database.name == "sqlite":  # a file for each test
        _FILES.copy_to(database)
        return database
    if database.url not in kept:
        own = database.kept()
        own.create(Base.metadata)
        kept[database.url] = own, engine_for_refills(own)
    with kept[database.url][1].begin() as connection:
        refill(connection)
    return database


@pytest.fixture
def engine(documents: Database) -> sa.Engine:
    """Make the engine of the actors and of ``session``."""
    return documents.engine(**_PATIENT.get(documents.name, {}))


@pytest.fixture
def session_factory(engine: sa.Engine) -> sessionmaker[LockingSession]:
    """Make sessions whose objects outlive a commit, so that they can be stale."""
    return sessionmaker(engine, class_=LockingSession, expire_on_commit=False)


@pytest.fixture
def session(session_factory: Callable[[], LockingSession]) -> Iterator[LockingSession]:
    """Open a session for a test that needs no more than one."""
    with session_factory() as session:
        yield session


@pytest.fixture
def elsewhere(documents: Database) -> Callable[..., None]:
    """Return a function that runs statements in a transaction of their own, and commits."""
    engine = documents.engine(**_PATIENT.get(documents.name, {}))

    def run(*statements: sa.Executable) -> None:
        with engine.begin() as connection:
            for statement in statements:
                connection.execute(statement)

    return run


@pytest.fixture
def restore(documents: Database) -> Callable[[], None]:
    """Return a function that puts the rows back, for a test that goes through many cases."""
    engine = documents.engine(**_PATIENT.get(documents.name, {}))

    def put_back() -> None:
        with engine.begin() as connection:
            refill(connection)

    return put_back


@pytest.fixture
def sent(engine: sa.Engine) -> list[str]:
    """Note the SELECTs and writes that are sent; not what begins or prepares a transaction."""
    noted: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        text = " ".join(statement.split())
        if text.startswith(("SELECT dc_", "INSERT", "UPDATE", "DELETE", "SELECT anon")):
            noted.append(text)

    event.listen(engine, "before_cursor_execute", note)
    return noted
