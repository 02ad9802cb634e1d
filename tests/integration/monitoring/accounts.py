"""An account of the server that may read and write the tables, and ask for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from tests.support.databases import Database

_NAME = "doclock_poor"
_MAKE = {
    "postgresql": (
        f"CREATE ROLE {_NAME} LOGIN PASSWORD '{_NAME}'",
        f"GRANT SELECT, UPDATE ON ALL TABLES IN SCHEMA public TO {_NAME}",
    ),
    "mysql": (
        f"CREATE USER {_NAME} IDENTIFIED BY '{_NAME}'",
        f"GRANT SELECT, UPDATE ON `{{}}`.* TO {_NAME}",
    ),
}
_DROP = {
    "postgresql": (f"DROP OWNED BY {_NAME}", f"DROP ROLE {_NAME}"),
    "mysql": (f"DROP USER {_NAME}",),
}


@contextmanager
def account(database: Database) -> Iterator[sa.URL]:
    """Make it; skip the test where the tests' own account may not."""
    url = sa.make_url(database.url)
    family = url.get_backend_name()
    with database.observer().connect() as connection:
        try:
            for statement in _MAKE[family]:
                connection.exec_driver_sql(statement.format(url.database))
        except sa.exc.DBAPIError as error:
            pytest.skip(f"no account could be made: {error.orig}")
        try:
            yield url.set(username=_NAME, password=_NAME)
        finally:
            for statement in _DROP[family]:
                connection.exec_driver_sql(statement)
