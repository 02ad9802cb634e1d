"""Views, which can be mapped like tables, and whose rows are others'."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, inspect
from sqlalchemy.engine import Dialect

from ..dialects import translated_schema
from ..documents import own_table
from ..errors import LockNotSupported
from .query import Claimable

_known: WeakKeyDictionary[Dialect, set[tuple[str | None, str]]] = WeakKeyDictionary()
"""By engine, the tables that are no views."""


def refuse_view(connection: Connection, claimable: Claimable) -> None:
    """Ask the database once for each engine and table.

    :raises LockNotSupported: a lock on it would be one on whatever the view reads, or none.
    """
    table = own_table(claimable.mapper)
    of_statement = claimable.statement.get_execution_options()
    schema = translated_schema(table, connection.get_execution_options(), of_statement)
    tables = _known.setdefault(connection.dialect, set())
    if (schema, table.name) in tables:
        return
    inspector = inspect(connection)
    ways: list[Callable[..., list[str]]] = [
        inspector.get_view_names,
        inspector.get_materialized_view_names,
    ]
    for names in ways:
        with suppress(NotImplementedError):  # no such views on this database
            if table.name in names(schema=schema):
                raise LockNotSupported(
                    f"{table.name!r} is a view, which has no rows of its own to lock: "
                    "claim the rows of the table"
                )
    tables.add((schema, table.name))
