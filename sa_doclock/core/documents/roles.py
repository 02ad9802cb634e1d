"""The rule by which a row belongs to a class: by its table, whichever class maps it.

A program may map a second class on the table of a header or of a part, as by
``__table__ = Line.__table__``.  Its rows are rows of the same documents.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Mapper

from .mapping import root_of
from .parts import Part


def is_second_class(mapper: Mapper[Any], other: Mapper[Any]) -> bool:
    """Return whether a class writes to the table of another one without inheriting from it."""
    return root_of(mapper) is not root_of(other) and other.local_table in mapper.tables


def is_row_of(mapper: Mapper[Any], other: Mapper[Any]) -> bool:
    """Return whether a row of this class is, or may be, a row of the other one."""
    return mapper.isa(other) or is_second_class(mapper, other)


def is_row_of_root(mapper: Mapper[Any], root: Mapper[Any]) -> bool:
    """Return whether a row of this class has its header row in the table of this root."""
    return root_of(mapper) is root or is_second_class(mapper, root)


def part_as_mapped(part: Part, mapper: Mapper[Any]) -> Part:
    """Return the part by the attributes of the class that maps its rows.

    The foreign key is None where the class does not map it: then only the database tells the
    owner.
    """
    if mapper.isa(part.detail):
        return part
    names = [_same_attribute(part.detail, mapper, name) for name in part.foreign_key or ()]
    compared = [
        (_same_attribute(part.detail, mapper, name), value) for name, value in part.discriminators
    ]
    return part._replace(
        detail=mapper,
        foreign_key=None if None in names or not names else tuple(filter(None, names)),
        reference=(),
        backrefs=(),
        discriminators=tuple((name, value) for name, value in compared if name is not None),
    )


def _same_attribute(mapper: Mapper[Any], other: Mapper[Any], name: str) -> str | None:
    """Return the attribute of the other class that maps the same column; None if none does."""
    shared = (
        one for one in mapper.column_attrs[name].columns if other.columns.contains_column(one)
    )
    column = next(iter(shared), None)
    return None if column is None else other.get_property_by_column(column).key
