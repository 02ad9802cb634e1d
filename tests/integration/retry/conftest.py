"""Waits that take no time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from tests.integration.asyncio.conftest import (
    pytest_collection_modifyitems,
    pytest_generate_tests,
    url,
)

__all__ = ["pytest_collection_modifyitems", "pytest_generate_tests", "url"]


@pytest.fixture
def engine(engine: sa.Engine) -> sa.Engine:
    """Make the shared engine; its connections look for a deadlock as soon as possible."""
    if engine.dialect.name == "postgresql":
        event.listen(engine, "connect", look_for_deadlocks_at_once)
    return engine


def look_for_deadlocks_at_once(connection: Any, _: object) -> None:
    """Shorten PostgreSQL's deadlock_timeout of one second, if the tests' user may."""
    cursor = connection.cursor()
    cursor.execute(
        "SELECT set_config('deadlock_timeout', '20ms', false) FROM pg_roles "
        "WHERE rolname = current_user AND rolsuper"
    )
    cursor.close()
    connection.commit()


@pytest.fixture(autouse=True)
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the pauses between attempts, without pausing."""
    seconds: list[float] = []
    monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=seconds.append))
    return seconds
