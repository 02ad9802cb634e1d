"""An engine with the tables of the stress fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from sa_doclock.tools.cli.database import open_database
from sa_doclock.tools.cli.workload import fresh_tables
from tests.reliability.history.sessions import THREADS
from tests.support.databases import Database


@pytest.fixture
def engine(database: Database) -> Iterator[Engine]:
    """Open the database as the command line does."""
    with open_database(database.url, THREADS) as target, fresh_tables(target.engine):
        yield target.engine
