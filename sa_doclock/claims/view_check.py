"""The check that a mapped table is not a view, whose rows belong to other tables."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, inspect
from sqlalchemy.engine import Dialect

from ..dialects import translated_schema
from ..documents import own_table
from ..errors import LockNotSupported
from .query import ClaimQuery

_known: WeakKeyDictionary[Dialect, set[tuple[str | None, str]]] = WeakKeyDictionary()
"""By engine, the tables that are known not to be views."""


def refuse_view(connection: Connection, query: ClaimQuery) -> None:
    """Ask the database, once for each engine and table, and refuse a view.

    :raises LockNotSupported: a lock on it would be one on whatever the view reads, or none.
    """
    table = own_table(query.mapper)
    of_statement = query.statement.get_execution_options()
    schema = translated_schema(table, connection.get_execution_options(), of_statement)
    tables = _known.setdefault(connection.dialect, set())
    if (schema, table.name) in tables:
        return
    inspector = inspect(connection)
    readers: list[Callable[..., list[str]]] = [
        inspector.get_view_names,
        inspector.get_materialized_view_names,
    ]
    for view_names in readers:
        with suppress(NotImplementedError):  # a database without materialized views
            if table.name in view_names(schema=schema):
                raise LockNotSupported(
                    f"{table.name!r} is a view, which has no rows of its own to lock: "
                    "claim the rows of the table"
                )
    tables.add((schema, table.name))
