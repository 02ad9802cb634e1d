"""The keys of a mapped class: its primary key, and its unique constraints and indexes.

Keys that do not hold for all rows at all times are excluded: partial indexes, indexes on an
expression or on the beginning of a text, and deferrable constraints, which the server may check
only at COMMIT.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Column, Index, PrimaryKeyConstraint, Table, UniqueConstraint
from sqlalchemy.orm import Mapper
from sqlalchemy.orm.exc import UnmappedColumnError

from ...keys import Identity, key_text
from .mapping import columns_values, identity_of, key_attributes, mapper_cache, own_table, root_of


class RowKey(NamedTuple):
    """Columns whose values identify at most one row.

    :ivar table: the table of the columns.
    :ivar names: the attributes that map them.
    :ivar primary: it is the primary key of the class.
    """

    table: Table
    columns: tuple[Any, ...]
    names: tuple[str, ...]
    primary: bool = False


def key_and_values(mapper: Mapper[Any], ident: Any) -> tuple[RowKey, Identity]:
    """Return the meant key, and its values in the form of rows.

    :param ident: the primary key, as for ``get_entity()``; or a mapping of the attributes of one
        key.
    :raises ValueError: the attributes of no key, a NULL, or a value that the column cannot have.
    :raises TypeError: it is an object, an SQL expression or a list, not a value.
    """
    names = key_attributes(mapper)
    if not isinstance(ident, Mapping) or set(ident) == set(names):
        table = own_table(root_of(mapper))
        return RowKey(table, mapper.primary_key, names, primary=True), identity_of(mapper, ident)
    key = unique_key(mapper, ident)
    entity = mapper.class_.__name__
    values = tuple(ident[name] for name in key.names)
    if any(value is None for value in values):
        raise ValueError(
            f"{entity} {key_text(ident)}: a unique key with NULL names no row, since several rows may "
            "have it; give a value for each attribute"
        )
    return key, columns_values(mapper, key.columns, values, ident)


def unique_key(mapper: Mapper[Any], attributes: Collection[str]) -> RowKey:
    """Return the unique key with exactly these attributes, or a mapping of them.

    :raises ValueError: there is none.
    """
    keys = unique_keys(mapper)
    key = next((candidate for candidate in keys if set(candidate.names) == set(attributes)), None)
    if key is not None:
        return key
    entity, primary = mapper.class_.__name__, ", ".join(key_attributes(mapper))
    unique = "; ".join(f"({', '.join(candidate.names)})" for candidate in keys) or "none"
    raise ValueError(
        f"{entity} {key_text(attributes)}: name the attributes of exactly one key of {entity}; its "
        f"primary key is ({primary}), and its unique keys are: {unique}"
    )


@mapper_cache
def unique_keys(mapper: Mapper[Any]) -> tuple[RowKey, ...]:
    """Return the unique keys of the class, without its primary key."""
    keys: dict[frozenset[str], RowKey] = {}
    for table in mapper.tables:
        if not isinstance(table, Table):  # a view or a subquery has no constraints
            continue
        for columns in _unique_columns(table):
            try:
                names = tuple(mapper.get_property_by_column(column).key for column in columns)
            except UnmappedColumnError:
                continue
            keys.setdefault(frozenset(names), RowKey(table, columns, names))
    keys.pop(frozenset(key_attributes(mapper)), None)
    return tuple(sorted(keys.values(), key=lambda key: key.names))


def _unique_columns(table: Table) -> Iterator[tuple[Column[Any], ...]]:
    """Yield the columns of each constraint and index that holds for every row after every statement."""
    for constraint in table.constraints:
        if isinstance(constraint, (UniqueConstraint, PrimaryKeyConstraint)) and not (
            constraint.deferrable
        ):
            yield tuple(constraint.columns)
    for index in table.indexes:
        if index.unique and not _is_partial(index):
            yield tuple(index.columns)


def _is_partial(index: Index) -> bool:
    """Return whether the index is on some rows, on an expression, or on a part of a value."""
    if not all(isinstance(expression, Column) for expression in index.expressions):
        return True
    return any(
        value is not None and name.endswith(("_where", "_length"))
        for name, value in index.dialect_kwargs.items()
    )
