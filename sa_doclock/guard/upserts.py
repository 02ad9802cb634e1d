"""INSERT .. ON CONFLICT DO UPDATE and ON DUPLICATE KEY UPDATE: the document of the updated row.

The row that is there already has the same values as the new one in the columns of the conflict.
Where the foreign key to the owner is among them, and the update leaves it alone, both rows are of
the same document.  The same is true of a header where its primary key is among them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain
from typing import Any

from sqlalchemy import Column, Insert, PrimaryKeyConstraint, UniqueConstraint

from ..core.documents import key_attributes
from .dml_internals import Conflict, conflict_of
from .targets import Target, is_header_target, table_of


def stays_in_its_document(statement: Insert, target: Target, given: Collection[str]) -> bool:
    """Return whether a row that is updated is certainly of the document of the new row.

    MySQL, and a conflict without columns, mean any unique key of the table: those that the Table
    declares.

    :param given: the names of the attributes that the new rows have values for.
    """
    conflict = conflict_of(statement)
    deciding = _deciding_attributes(target)
    if conflict is None or not deciding or deciding & _moved(target, conflict):
        return False
    named = conflict.columns
    for key in _unique_keys(table_of(statement)) if named is None else [named]:
        columns = {target.attribute_of(name) for name in key}
        if not deciding <= columns and not _is_generated(statement, target, columns - {*given}):
            return False
    return True


def _deciding_attributes(target: Target) -> set[str]:
    """Return the attributes that say which document a row is of; empty if they do not."""
    links = set(chain.from_iterable(link.names for link in target.links))
    if target.unclear:
        return set()
    if is_header_target(target):
        return links | {*key_attributes(target.root)}
    return set() if target.by_identity else links


def _moved(target: Target, conflict: Conflict) -> set[str]:
    """Return the attributes that the update sets to another value than that of the new row."""
    return {
        target.attribute_of(name) for name, value in conflict.sets.items() if _moves(name, value)
    }


def _moves(name: str, value: Any) -> bool:
    # Not excluded.order_id of PostgreSQL and SQLite, inserted.order_id of MySQL, nor the old value.
    return not isinstance(value, Column) or value.key != name


def _unique_keys(table: Any) -> Iterator[Collection[str]]:
    for one in (*table.constraints, *table.indexes):
        is_key = isinstance(one, (PrimaryKeyConstraint, UniqueConstraint))
        if is_key or getattr(one, "unique", False):
            yield one.columns.keys()


def _is_generated(statement: Insert, target: Target, left_out: Collection[str]) -> bool:
    """Return whether the database generates a value that no row has yet for one of these columns."""
    column = getattr(table_of(statement), "autoincrement_column", None)
    return column is not None and target.attribute_of(column) in left_out
