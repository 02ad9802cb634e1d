"""A session that asks which connections block it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession
from sa_doclock.features import diagnosis
from tests.integration.monitoring.steps import account
from tests.support.databases import Database


@pytest.fixture(autouse=True)
def asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share no answer with a later query: most tests ask twice, with a change in between."""
    monkeypatch.setattr(diagnosis, "SHARED_FOR", 0.0)


@pytest.fixture
def asker(engine: sa.Engine) -> Iterator[LockingSession]:
    """Open a session that reports the holders of a refused lock."""
    with LockingSession(engine, diagnose=True) as session:
        yield session


@pytest.fixture
def poor(documents: Database) -> Iterator[sa.URL]:
    """Create an account that may use the tables, and nothing else."""
    with account(documents) as url:
        yield url


@pytest.fixture
def applications(database: Database) -> dict[str, Any]:
    """Return options for an engine whose connections identify themselves as ``billing``."""
    if sa.make_url(database.url).get_driver_name() not in ("psycopg", "psycopg2", "pymysql"):
        pytest.skip("no other driver takes the name of the program as an argument of that name")
    name = "application_name" if database.name == "postgresql" else "program_name"
    return {"connect_args": {name: "billing"}}
