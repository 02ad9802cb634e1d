"""The primary keys among the columns that the program's own ``with_for_update()`` has returned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Alias, Label, Result, Select, inspect
from sqlalchemy.orm import Mapper
from sqlalchemy.sql.expression import ColumnClause

from ..documents import key_attributes, root_of, roots_of_table, tables_within
from ..loading import load_again
from ..lock_info import Identity
from ..locking import expire_documents, refuse_unsaved
from ..sqlalchemy_internals import buffer_rows, for_update_tables
from ..transaction import LockContext

ReturnedKey = tuple[Mapper[Any], Identity]
"""The root of a hierarchy, and the key of one of its rows."""


class KeyPlaces(NamedTuple):
    """The places in a row of the columns that are the whole key of a header.

    :ivar root: the root of the hierarchy that has the header.
    :ivar width: the number of columns of a row.
    """

    root: Mapper[Any]
    places: Sequence[int]
    width: int


def keys_of_entities(statement: Any, entities: Iterable[Any]) -> Iterator[KeyPlaces]:
    """Yield the keys of these classes and aliases that are whole among the selected columns."""
    described = statement.column_descriptions
    for entity in entities:
        mapper: Mapper[Any] = inspect(entity).mapper
        places = {
            _attribute_of(mapper, column): place
            for place, one in enumerate(described)
            if one.get("entity") is entity and (column := _column_of(one["expr"])) is not None
        }
        root = root_of(mapper)
        yield from _whole(root, key_attributes(root), places, len(described))


def keys_of_tables(statement: Any) -> Iterator[KeyPlaces]:
    """Yield the keys that are whole among the selected columns of the tables that it locks.

    Not those of attributes of a class, which :func:`keys_of_entities` yields.
    """
    described = statement.column_descriptions
    by_table: dict[Any, dict[Any, int]] = {}
    for place, one in enumerate(described):
        column = _column_of(one["expr"]) if one.get("entity") is None else None
        if column is not None and column.table is not None:
            by_table.setdefault(column.table, {})[_base_of(column)] = place
    locked = {*tables_within(locked_froms(statement))} if by_table else ()
    for table in by_table.keys() & locked:
        mapped: Any = table.element if isinstance(table, Alias) else table
        for root in roots_of_table(mapped):
            yield from _whole(root, root.primary_key, by_table[table], len(described))


def locked_froms(statement: Select[Any]) -> Sequence[Any]:
    """Return the FROM clauses that the lock is of: those it names, or else all that are read."""
    return for_update_tables(statement) or statement.get_final_froms()


def _whole(
    root: Mapper[Any], key: Iterable[Any], places: Mapping[Any, int], width: int
) -> Iterator[KeyPlaces]:
    found = [places.get(one) for one in key]
    whole = [place for place in found if place is not None]
    if len(whole) == len(found):
        yield KeyPlaces(root, whole, width)


def _column_of(expression: Any) -> Any | None:
    """Return the column that is selected, with a label or without; None of all else."""
    column = getattr(inspect(expression, raiseerr=False), "expression", None)
    while isinstance(column, Label):
        column = column.element
    return column if isinstance(column, ColumnClause) else None


def _base_of(column: Any) -> Any | None:
    """Return the column of the table that this one, of an alias, stands for."""
    bases = column.base_columns
    return next(iter(bases)) if len(bases) == 1 else None


def _attribute_of(mapper: Mapper[Any], column: Any) -> str | None:
    """Return the attribute that maps the column; None if none does."""
    base = _base_of(column)
    if base is None or not mapper.columns.contains_column(base):
        return None
    return mapper.get_property_by_column(base).key


def returned_keys(result: Result[Any], keys: Sequence[KeyPlaces]) -> Sequence[ReturnedKey]:
    """Return the keys of the rows, which stay in the result."""
    width = len(result.keys())
    keys = [one for one in keys if one.width == width]  # text() may have made it wider
    if not keys:
        return ()
    found: list[ReturnedKey] = [
        (one.root, tuple(row[place] for place in one.places))
        for row in buffer_rows(result)
        for one in keys
    ]
    return [(root, key) for root, key in dict.fromkeys(found) if None not in key]


def expire_by_keys(context: LockContext, keys: Iterable[ReturnedKey]) -> None:
    """Have what the session had of these documents read again.

    :raises UnsavedChanges: one of them has pending changes, and nobody has read what they collide with.
    """
    for root, identity in _not_held(context, keys):
        refuse_unsaved(context, root, [identity])
        load_again(context.session(), expire_documents(context, root, [identity]))


def _not_held(context: LockContext, keys: Iterable[ReturnedKey]) -> Iterator[ReturnedKey]:
    for root, identity in keys:
        if (root.class_, identity) not in context.ledger.held:
            yield root, identity
