"""Tables with known rows, kept between tests: creating and filling them by a session takes longer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import sqlalchemy as sa

from tests.support.databases import Database
from tests.support.refill import FilledFiles, Refill, engine_for_refills


class _Keeper(NamedTuple):
    """The tables of one server, and the statements that restore their rows."""

    database: Database
    engine: sa.Engine
    refill: Refill

    def put_rows(self) -> None:
        with self.engine.begin() as connection:
            self.refill(connection)


class KeptTables:
    """The tables of a test package: one file for each test on SQLite, shared tables on a server."""

    def __init__(self, metadata: sa.MetaData, fill: Callable[[sa.Connection], object]) -> None:
        """Create nothing yet.

        :param fill: inserts the rows into the tables; called once, after which the rows are known.
        """
        self._metadata = metadata
        self._fill = fill
        self._files = FilledFiles(metadata, fill)
        self._keepers: dict[str, _Keeper] = {}

    def put_rows(self, database: Database) -> None:
        """Put the rows into a test's database, and remove all others."""
        if database.name == "sqlite":
            self._files.copy_to(database)
            return
        if (keeper := self._keepers.get(database.url)) is None:
            self._keep(database)
            return
        try:
            keeper.put_rows()
        except (sa.exc.DBAPIError, keeper.engine.dialect.loaded_dbapi.Error):
            keeper.database.create(self._metadata)  # a test dropped some
            keeper.put_rows()

    def close(self) -> None:
        """Drop the tables."""
        for keeper in self._keepers.values():
            keeper.database.close()
        self._keepers.clear()

    def _keep(self, database: Database) -> None:
        own = database.kept()
        own.create(self._metadata)
        engine = engine_for_refills(own)
        with engine.begin() as connection:
            self._fill(connection)
            tables = self._metadata.sorted_tables
            rows = {table: found for table in tables if (found := _rows_of(table, connection))}
        self._keepers[database.url] = _Keeper(own, engine, Refill(self._metadata, rows))


def _rows_of(table: sa.Table, connection: sa.Connection) -> list[dict[str, Any]]:
    """Return all rows, without empty columns: for JSON, SQL NULL differs from None."""
    rows = connection.execute(sa.select(table)).mappings().all()
    kept = [
        column
        for column in table.columns
        if column.default is not None
        or column.server_default is not None
        or any(row[column.name] is not None for row in rows)
    ]
    return [{column.name: _literal(column, row[column.name]) for column in kept} for row in rows]


def _literal(column: sa.Column[Any], value: Any) -> Any:
    is_json = isinstance(column.type, sa.JSON)  # SQLAlchemy makes no literals of JSON values
    return sa.literal(json.dumps(value), sa.String()) if is_json else value
