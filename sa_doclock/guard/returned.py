"""The keys of inserted headers that the database gave out, as the result of the INSERT tells them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from sqlalchemy.exc import InvalidRequestError

from ..documents import key_attributes
from ..lock_info import Identity
from ..sqlalchemy_internals import returned_columns
from .targets import Target


def keys_of_result(statement: Any, target: Target, result: Any) -> tuple[Any, list[Identity]]:
    """Return the result, which can still be read, and the primary keys of the inserted rows.

    They are in the rows of ``returning(Order.id)``, or in ``inserted_primary_key``.
    """
    assert target.mapper is not None
    columns = returned_columns(statement)
    if not columns:
        return result, list(_inserted_primary_key(result))
    returned = [target.attribute_of(one) if hasattr(one, "key") else None for one in columns]
    names = key_attributes(target.mapper)
    if not {*names} <= {*returned}:
        return result, []  # an entity among them is noted when it is loaded
    frozen = result.freeze()
    places = [returned.index(name) for name in names]
    return frozen(), [tuple(row[place] for place in places) for row in frozen()]


def _inserted_primary_key(result: Any) -> Iterator[Identity]:
    key = None
    with suppress(InvalidRequestError):  # of several rows, none is known
        key = getattr(result, "inserted_primary_key", None)
    if key is not None and None not in key:
        yield tuple(key)
