"""Sessions on the documents of this folder, and the statements they send."""

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

#: No wait ends by itself during a test: the other databases wait 50 s or longer by default.
_PATIENT: dict[str, dict[str, Any]] = {"sqlite": {"connect_args": {"timeout": 60}}}

Kept = dict[str, tuple[Database, sa.Engine]]
_FILES = FilledFiles(Base.metadata, refill)


@pytest.fixture(scope="session")
def kept() -> Iterator[Kept]:
    """Keep a server's tables between tests, because creating them takes longer than a test."""
    databases: Kept = {}
    yield databases
    for database, _ in databases.values():
        database.close()


@pytest.fixture
def documents(database: Database, kept: Kept) -> Database:
    """Return the database with exactly the rows of rows.py."""
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
    return documents.engine(**_PATIENT.get(documents.name, {}))


@pytest.fixture
def session_factory(engine: sa.Engine) -> sessionmaker[LockingSession]:
    """Return a factory of sessions whose objects outlive a commit, and so can become stale."""
    return sessionmaker(engine, class_=LockingSession, expire_on_commit=False)


@pytest.fixture
def session(session_factory: Callable[[], LockingSession]) -> Iterator[LockingSession]:
    """Open a session for a test that needs only one."""
    with session_factory() as session:
        yield session


@pytest.fixture
def elsewhere(documents: Database) -> Callable[..., None]:
    """Return a function that runs and commits statements in a separate transaction."""
    engine = documents.engine(**_PATIENT.get(documents.name, {}))

    def run(*statements: sa.Executable) -> None:
        with engine.begin() as connection:
            for statement in statements:
                connection.execute(statement)

    return run


@pytest.fixture
def restore(documents: Database) -> Callable[[], None]:
    """Return a function that restores the rows, for a test that runs many cases."""
    engine = documents.engine(**_PATIENT.get(documents.name, {}))

    def put_back() -> None:
        with engine.begin() as connection:
            refill(connection)

    return put_back


@pytest.fixture
def sent(engine: sa.Engine) -> list[str]:
    """Record the SELECTs and writes; not the statements that begin or prepare a transaction."""
    noted: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        text = " ".join(statement.split())
        if text.startswith(("SELECT dc_", "INSERT", "UPDATE", "DELETE", "SELECT anon")):
            noted.append(text)

    event.listen(engine, "before_cursor_execute", note)
    return noted
