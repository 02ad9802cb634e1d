"""A table of jobs beside the documents of tests/support/models.py, and loops over it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from tests.integration.claims.jobs import Base, put_jobs
from tests.integration.conftest import Keeper
from tests.support.databases import Database
from tests.support.refill import FilledFiles

_FILES = FilledFiles(Base.metadata, put_jobs)


@pytest.fixture(scope="session")
def keepers() -> Iterator[dict[str, Keeper]]:
    """Keep the tables until the last test has ended."""
    kept: dict[str, Keeper] = {}
    yield kept
    for keeper in kept.values():
        keeper.database.close()


@pytest.fixture
def documents(database: Database, keepers: dict[str, Keeper]) -> Database:
    """Return the database with ten new jobs in it."""
    if database.name == "sqlite":  # a file for each test
        _FILES.copy_to(database)
        return database
    if database.url in keepers:
        keeper = keepers[database.url]
    else:
        kept = database.kept()
        keeper = keepers[database.url] = Keeper(kept, kept.engine())
    try:
        with keeper.engine.begin() as connection:
            put_jobs(connection)
    except sa.exc.DBAPIError:  # the first test, or another file has dropped the tables
        keeper.database.create(Base.metadata)
        with keeper.engine.begin() as connection:
            put_jobs(connection)
    return database
