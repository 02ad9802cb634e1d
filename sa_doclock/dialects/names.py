"""Names of tables under ``schema_translate_map``, and names of named locks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Table

_OPTION = "schema_translate_map"


def schema_translation(*options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the ``schema_translate_map`` of these execution options as an option, if there is one.

    :param options: of engine, session, statement ...: the last that has it is in force.
    """
    found = [one[_OPTION] for one in options if _OPTION in one]
    return {_OPTION: found[-1]} if found else {}


def translated_schema(table: Table, *options: Mapping[str, Any]) -> str | None:
    """Return the table's schema under these execution options; see :func:`schema_translation`."""
    translation = schema_translation(*options).get(_OPTION) or {}
    found: str | None = translation.get(table.schema, table.schema)
    return found


def schema_of(connection: Connection, table: Table) -> str | None:
    """Return the table's schema, after ``schema_translate_map``."""
    return translated_schema(table, connection.get_execution_options())


def quoted_name(connection: Connection, table: Table) -> str:
    """Return the table's name with its schema, as it stands in a statement of this connection."""
    quote = connection.dialect.identifier_preparer.quote
    return ".".join(quote(part) for part in (schema_of(connection, table), table.name) if part)


# No letter that a server may take for another, and nothing that an SQL literal has to escape.
_NOT_PLAIN = re.compile(r"[^a-z0-9_.:/@+=,-]")
_DIGITS = 32  # of SHA-256, 128 bits
_MARK = "#"  # is not plain, so no key reads like the name of another


def short_name(key: str, longest: int) -> str:
    """Return the key itself, if it is plain and not too long; else its beginning, and a hash.

    The same key gives the same name in every process, release and program.
    """
    readable = _NOT_PLAIN.sub("_", key)
    if readable == key and len(key) <= longest:
        return key
    digest = hashlib.sha256(key.encode()).hexdigest()[:_DIGITS]
    return f"{readable[: longest - _DIGITS - len(_MARK)]}{_MARK}{digest}"
