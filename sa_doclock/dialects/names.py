"""Names of tables under ``schema_translate_map``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Connection, Table, TableClause
from sqlalchemy import table as table_named

SCHEMA_OPTION: Final = "schema_translate_map"


def schema_translation(*options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the ``schema_translate_map`` in these execution options as an option, or {}.

    :param options: of engine, session, statement ...: the last one with a map is in force.
    """
    found = [given[SCHEMA_OPTION] for given in options if SCHEMA_OPTION in given]
    return {SCHEMA_OPTION: found[-1]} if found else {}


def translated_schema(table: TableClause, *options: Mapping[str, Any]) -> str | None:
    """Return the table's schema under these execution options; see :func:`schema_translation`.

    SQLAlchemy translates the schema of a Table, but not of a ``table()``.
    """
    if not isinstance(table, Table):
        return table.schema
    translation = schema_translation(*options).get(SCHEMA_OPTION) or {}
    found: str | None = translation.get(table.schema, table.schema)
    return found


def translated_table(table: Any, *options: Mapping[str, Any]) -> Any:
    """Return the table, as a mere name if these execution options give it another schema."""
    schema = translated_schema(table, *options)
    return table if schema == table.schema else table_named(table.name, schema=schema)


def schema_of(connection: Connection, table: Table) -> str | None:
    """Return the table's schema, after ``schema_translate_map``."""
    translation = connection.get_execution_options().get(SCHEMA_OPTION) or {}
    found: str | None = translation.get(table.schema, table.schema)
    return found


def quoted_name(connection: Connection, table: Table) -> str:
    """Return the table's name with its schema, as in a statement of this connection."""
    quote = connection.dialect.identifier_preparer.quote
    return ".".join(quote(part) for part in (schema_of(connection, table), table.name) if part)
