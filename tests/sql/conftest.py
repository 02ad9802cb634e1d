"""The exact SQL, without a server: how statements compile, and in which order a session sends them.

These tests do not prove that a row is locked.  They prove that a session sends the words that lock
it on a real server (tests/integration/locking), in the right order.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from sa_doclock import LockingSession
from tests.sql.driver import Script
from tests.sql.servers import serving


@pytest.fixture
def scripted() -> Iterator[tuple[Engine, Script]]:
    """Serve a scripted SQL Server to the test."""
    with serving("mssql") as served:
        yield served


@pytest.fixture
def script(scripted: tuple[Engine, Script]) -> Script:
    """Yield the server: the test scripts its answers and reads the statements that it received."""
    return scripted[1]


@pytest.fixture
def session(scripted: tuple[Engine, Script]) -> Iterator[LockingSession]:
    with LockingSession(scripted[0]) as session:
        yield session
