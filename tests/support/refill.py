"""The same known rows in every table, and SQLite files that are filled once and copied."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from pymysql.constants import CLIENT
from sqlalchemy.pool import NullPool

from tests.support.databases import Database, new_sqlite_file

# --------------------------------------------------------------------------------------------------
# SQLite files with tables and rows, built once and copied for each test: building takes too long.


class FilledFiles:
    """The contents of the file for each column of the matrix."""

    def __init__(self, metadata: sa.MetaData, fill: Callable[[sa.Connection], object]) -> None:
        """Create nothing yet.

        :param fill: inserts the rows into the tables.
        """
        self._metadata = metadata
        self._fill = fill
        self._contents: dict[str, bytes] = {}

    def copy_to(self, database: Database) -> None:
        """Give a test's file the tables and rows, in the journal mode of its column."""
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


# --------------------------------------------------------------------------------------------------
# Fills every table with known rows, and no others, in one round trip.
#
# Statement by statement this took longer than most of the tests that begin with it.


def engine_for_refills(database: Database) -> sa.Engine:
    """Make an engine whose connections accept several statements at once, if the driver can."""
    if sa.make_url(database.url).get_driver_name() == "pymysql":
        return database.engine(connect_args={"client_flag": CLIENT.MULTI_STATEMENTS})
    return database.engine()


class Refill:
    """Insert these rows into the tables, and delete all others."""

    def __init__(
        self,
        metadata: sa.MetaData,
        rows: Mapping[sa.Table, Sequence[Mapping[str, Any]]],
        *,
        first: Sequence[sa.Executable] = (),
    ) -> None:
        """Describe the tables.

        :param rows: in an order that foreign keys allow.
        :param first: statements to execute before the deletes.
        """
        deletes = [table.delete() for table in reversed(metadata.sorted_tables)]
        inserts = [
            table.insert().values([{**_defaults(table), **row} for row in new])
            for table, new in rows.items()
        ]
        self._statements: Sequence[Any] = [*first, *deletes, *inserts]
        self._texts: dict[str, Sequence[str]] = {}

    def __call__(self, connection: sa.Connection) -> None:
        """Refill the tables, in the transaction of this connection.

        The driver's own error may escape.
        """
        dialect = connection.dialect
        if dialect.name not in self._texts:
            how = {"literal_binds": True}
            self._texts[dialect.name] = [
                str(statement.compile(dialect=dialect, compile_kwargs=how))
                for statement in self._statements
            ]
        texts = self._texts[dialect.name]
        if not _takes_many(connection):
            for text in texts:
                connection.exec_driver_sql(text)
            return
        with closing(connection.connection.cursor()) as cursor:
            cursor.execute(";".join(texts))
            while cursor.nextset():  # which raises the statement's error
                pass


def _defaults(table: sa.Table) -> dict[str, Any]:
    """Return the defaults that SQLAlchemy fills in when it executes an INSERT, but not when it compiles it."""
    return {
        column.key: column.default.arg
        for column in table.columns
        if isinstance(column.default, sa.ColumnDefault)
    }


def _takes_many(connection: sa.Connection) -> bool:
    driver: Any = connection.connection.driver_connection
    if connection.dialect.driver == "pymysql":
        return bool(driver.client_flag & CLIENT.MULTI_STATEMENTS)
    return connection.dialect.driver == "psycopg"
