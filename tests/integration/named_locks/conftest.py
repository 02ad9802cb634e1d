"""The named locks that the server lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from tests.integration.named_locks.keys import HELD
from tests.support.databases import Database
from tests.support.waits import _write_lock_is_taken, wait_until


@pytest.fixture
def held_there(database: Database) -> Iterator[Callable[[], bool]]:
    """Return a function that asks the server, from outside, whether somebody has the key."""
    observer = database.observer()

    def ask() -> bool:
        if database.name == "sqlite":
            return _write_lock_is_taken(sa.make_url(database.url).database)
        with observer.connect() as connection:
            return bool(connection.exec_driver_sql(HELD[database.name]).scalar())

    wait_until(lambda: not ask())  # a server hears late of what the test before has closed
    yield ask
    observer.dispose()
