"""The key of these tests, and the named locks that the server lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockNotAvailable
from tests.support.databases import Database
from tests.support.waits import _write_lock_is_taken, wait_until

# --------------------------------------------------------------------------------------------------
# The key of these tests, the actions on it, and how to ask a server for it.

KEY = "user:42"
Step = Callable[[LockingSession], Any]

HELD: Mapping[str, str] = {
    "postgresql": """
        SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())""",
    "mysql": f"SELECT COUNT(IS_USED_LOCK(CONCAT(DATABASE(), '.{KEY}')))",
    "mariadb": f"SELECT COUNT(IS_USED_LOCK(CONCAT(DATABASE(), '.{KEY}')))",
    "mssql": "SELECT COUNT(*) FROM sys.dm_tran_locks WHERE resource_type = 'APPLICATION' "
    "AND resource_database_id = DB_ID()",
}


def takes(key: str = KEY, **how: Any) -> Step:
    """Make the step that locks the key, and keeps it."""

    def step(session: LockingSession) -> None:
        session.lock_key(key, **how)

    return step


def finds_taken(key: str = KEY, **how: Any) -> Callable[[LockingSession], bool]:
    """Make the step that returns whether another session has the key, and keeps no lock."""

    def step(session: LockingSession) -> bool:
        try:
            session.lock_key(key, lock_timeout=0, **how)
        except LockNotAvailable:
            return True
        finally:
            session.rollback()
        return False

    return step


# --------------------------------------------------------------------------------------------------
# The named locks that the server lists.


@pytest.fixture
def held_there(database: Database) -> Iterator[Callable[[], bool]]:
    """Return a function that queries the server, from outside, whether a session has the key."""
    observer = database.observer()

    def ask() -> bool:
        if database.name == "sqlite":
            return _write_lock_is_taken(sa.make_url(database.url).database)
        with observer.connect() as connection:
            return bool(connection.exec_driver_sql(HELD[database.name]).scalar())

    wait_until(lambda: not ask())  # a server may notice the previous test's disconnect late
    yield ask
    observer.dispose()
