"""The suite for dialects of other packages, on the databases of this package.

Other folders test most of it in more detail: locking, lock_errors, timeouts, claims, retry, guard
and reliability/stress.  Here the tests show that the suite itself is correct.
"""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from sa_doclock.testing.dialect_suite import *  # noqa: F403
from tests.support.databases import Database

pytestmark = [pytest.mark.own_logic, pytest.mark.not_databases("sqlite-journal")]


@pytest.fixture
def engine(database: Database) -> Engine:
    # On SQLite a busy machine needs more than the driver's 5 s for 70 transactions.
    options = {"connect_args": {"timeout": 60}} if database.name == "sqlite" else {}
    return database.engine(pool_size=20, **options)


@pytest.fixture  # type: ignore[no-redef]  # in place of the one that was imported
def read_committed_engine(database: Database) -> Engine:
    level = {} if database.name == "sqlite" else {"isolation_level": "READ COMMITTED"}
    return database.engine(pool_size=20, **level)
