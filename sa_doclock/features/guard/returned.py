"""The keys of inserted headers that the database gave out, as the result of the INSERT tells them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy.engine import IteratorResult, Row
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm.attributes import instance_state

from ...core.documents import key_attributes
from ...core.lock_info import Identity
from ...core.sqlalchemy_internals import buffer_rows
from .dml_internals import returned_columns
from .targets import Target


def keys_of_result(statement: Any, target: Target, result: Any) -> tuple[Any, list[Identity]]:
    """Return the result, which can still be read, and the primary keys of the inserted rows.

    They are in the rows of ``returning(Order.id)`` and of ``returning(Order)``, or in
    ``inserted_primary_key``.
    """
    columns = returned_columns(statement)
    if not columns:
        return result, list(_inserted_primary_key(result))
    if isinstance(result, IteratorResult):  # of objects, or of their attributes
        objects = list(_headers_among(buffer_rows(result), target))
        if objects:
            return result, objects
    return _keys_of_columns(columns, target, result)


def _keys_of_columns(
    columns: Sequence[Any], target: Target, result: Any
) -> tuple[Any, list[Identity]]:
    assert target.mapper is not None
    returned = [target.attribute_of(one) if hasattr(one, "key") else None for one in columns]
    names = key_attributes(target.mapper)
    if not {*names} <= {*returned}:
        return result, []
    places = [returned.index(name) for name in names]
    return result, [tuple(row[place] for place in places) for row in buffer_rows(result)]


def _headers_among(rows: Iterable[Any], target: Target) -> Iterator[Identity]:
    """Yield the primary keys of the headers among the objects of these rows."""
    for row in rows:
        for one in row if isinstance(row, (tuple, Row)) else (row,):
            key = instance_state(one).identity if isinstance(one, target.root.class_) else None
            if key is not None:
                yield key


def _inserted_primary_key(result: Any) -> Iterator[Identity]:
    key = None
    with suppress(InvalidRequestError):  # of several rows, none is known
        key = getattr(result, "inserted_primary_key", None)
    if key is not None and None not in key:
        yield tuple(key)
