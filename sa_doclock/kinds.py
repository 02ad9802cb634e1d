"""The kinds of rows: the classes of one hierarchy, and the value of a row that names its class."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ClauseElement, Column
from sqlalchemy.orm import Mapper
from sqlalchemy.sql.visitors import iterate

from .core.documents import mapper_cache


def kind_attribute(mapper: Mapper[Any]) -> str | None:
    """Return the attribute whose value names a row's class in the hierarchy."""
    base = mapper.base_mapper
    column = base.polymorphic_on
    if not isinstance(column, Column) or not base.columns.contains_column(column):
        return None
    return base.get_property_by_column(column).key


def kinds_of(mapper: Mapper[Any], value: Any) -> list[Mapper[Any]]:
    """Return the classes of the hierarchy whose rows have this value there; for an expression, all."""
    kinds = mapper.polymorphic_map
    if isinstance(value, ClauseElement):
        return list(kinds.values())
    return [kinds[value]] if value in kinds else []


@mapper_cache
def kind_attributes(mapper: Mapper[Any]) -> tuple[str, ...]:
    """Return the attributes whose values name a row's class in the hierarchy: several for an
    expression.
    """
    base = mapper.base_mapper
    if base.polymorphic_on is None:
        return ()
    columns = (element for element in iterate(base.polymorphic_on) if isinstance(element, Column))
    return tuple(
        base.get_property_by_column(column).key
        for column in columns
        if base.columns.contains_column(column)
    )
