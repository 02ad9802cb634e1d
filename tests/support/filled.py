"""SQLite files with tables and rows, made once and copied for each test: to make one takes longer than a test."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from tests.support.databases import Database, new_sqlite_file


class FilledFiles:
    """The contents of the file of each column of the matrix."""

    def __init__(self, metadata: sa.MetaData, fill: Callable[[sa.Connection], object]) -> None:
        """Make nothing yet.

        :param fill: puts the rows into the tables.
        """
        self._metadata = metadata
        self._fill = fill
        self._contents: dict[str, bytes] = {}

    def copy_to(self, database: Database) -> None:
        """Make the file of a test one with the tables and rows, in the journal mode of its column."""
        column = database.column
        if column not in self._contents:
            self._contents[column] = self._made(column)
        _path_of(database).write_bytes(self._contents[column])

    def _made(self, column: str) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            made = new_sqlite_file(column, Path(folder))
            engine = sa.create_engine(made.url, poolclass=NullPool)
            with engine.begin() as connection:
                self._metadata.create_all(connection)
                self._fill(connection)
            return _path_of(made).read_bytes()


def _path_of(database: Database) -> Path:
    return Path(str(sa.make_url(database.url).database))
