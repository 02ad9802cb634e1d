"""The exact SQL, with no server: what is compiled, and what a session sends in which order.

None of it proves that a row is locked.  It proves that the words are there which, on a real server,
lock it (tests/integration/locking), and that they come in the right order.
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
    """Serve one SQL Server to the test."""
    with serving("mssql") as served:
        yield served


@pytest.fixture
def script(scripted: tuple[Engine, Script]) -> Script:
    """Tell the server what to say; read what was sent to it."""
    return scripted[1]


@pytest.fixture
def session(scripted: tuple[Engine, Script]) -> Iterator[LockingSession]:
    """Open a session on it."""
    with LockingSession(scripted[0]) as session:
        yield session
