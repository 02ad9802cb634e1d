"""RowPlace: the database and the schemas in which (class, key) names a row."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Engine

from ..dialects import SCHEMA_OPTION

Schemas = Mapping["str | None", "str | None"]


_UNTRANSLATED: Final[Schemas] = MappingProxyType({})


class RowPlace(NamedTuple):
    """The place of rows: two tenants may each have an order 1, and so may two databases.

    :ivar schemas: the ``schema_translate_map`` in force.
    """

    engine: Engine
    schemas: Schemas

    def is_same(self, other: RowPlace) -> bool:
        """Return whether a row of one place is the row of the same table and key at the other."""
        same_database = self.engine is other.engine or self.engine.pool is other.engine.pool
        return same_database and self.schemas == other.schemas

    def __str__(self) -> str:
        """Return the words of an error."""
        where = self.engine.url.render_as_string(hide_password=True)
        if not self.schemas:
            return where
        names = (
            f"{'the default schema' if name is None else name} -> {other or 'the default schema'}"
            for name, other in self.schemas.items()
        )
        return f"{where} with schema_translate_map {', '.join(names)}"


def place_of(bind: Engine | Connection, *options: Mapping[str, Any]) -> RowPlace:
    """Return the place of the rows that a statement with these execution options reads or writes."""
    schemas = bind.get_execution_options().get(SCHEMA_OPTION)
    for one in options:
        schemas = one.get(SCHEMA_OPTION, schemas)
    return RowPlace(bind.engine, schemas or _UNTRANSLATED)
