"""The suite for dialects of other packages, on the databases of this one.

Most of what it proves is proved in other folders in more detail: in locking, lock_errors, timeouts,
claims, retry, guard and reliability/stress.  Here it shows that the suite itself is right.
"""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from sa_doclock.testing.dialect_suite import *  # noqa: F403
from tests.support.databases import Database

pytestmark = [pytest.mark.own_logic, pytest.mark.not_databases("sqlite-journal")]


@pytest.fixture
def engine(database: Database) -> Engine:
    # Of SQLite: a busy machine does 70 transactions in more than the driver's 5 s.
    options = {"connect_args": {"timeout": 60}} if database.name == "sqlite" else {}
    return database.engine(pool_size=20, **options)


@pytest.fixture  # type: ignore[no-redef]  # in place of the one that was imported
def read_committed_engine(database: Database) -> Engine:
    level = {} if database.name == "sqlite" else {"isolation_level": "READ COMMITTED"}
    return database.engine(pool_size=20, **level)
