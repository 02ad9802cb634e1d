"""The engine of a run, with the fixture's tables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from sa_doclock.tools.cli.database import open_database
from sa_doclock.tools.cli.workload import Plan, fresh_tables
from tests.support.databases import Database


@pytest.fixture
def engine(database: Database) -> Iterator[Engine]:
    """Open the database as the command line does."""
    with open_database(database.url, Plan().threads) as target, fresh_tables(target.engine):
        yield target.engine
