"""The primary keys among the columns that the program's own ``with_for_update()`` has returned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import Result, inspect
from sqlalchemy.orm import Mapper

from ..documents import key_attributes, root_of
from ..loading import load_again
from ..lock_info import Identity
from ..locking import LockContext, expire_documents, refuse_unsaved
from ..sqlalchemy_internals import buffer_rows

ReturnedKey = tuple[Mapper[Any], Identity]
"""The root of a hierarchy, and the key of one of its rows."""


def returned_keys(
    statement: Any, result: Result[Any], entities: Iterable[Any]
) -> Sequence[ReturnedKey]:
    """Return the keys of locked rows that are whole among the columns; the rows stay in the result.

    Not those of columns with a label.

    :param entities: the locked classes and aliases.
    """
    places = [
        (root_of(inspect(entity).mapper), of_key)
        for entity in entities
        if (of_key := _places_of_key(statement, entity)) is not None
    ]
    if not places:
        return ()
    found: list[ReturnedKey] = [
        (root, tuple(row[place] for place in of_key))
        for row in buffer_rows(result)
        for root, of_key in places
    ]
    return [(root, key) for root, key in dict.fromkeys(found) if None not in key]


def _places_of_key(statement: Any, entity: Any) -> Sequence[int] | None:
    """Return the places of the columns of the key in a row; None: not all of them are in it."""
    mapper: Mapper[Any] = inspect(entity).mapper
    places = {
        one["expr"].property: place
        for place, one in enumerate(statement.column_descriptions)
        if one.get("entity") is entity and hasattr(one["expr"], "property")
    }
    found = [places.get(mapper.attrs[name]) for name in key_attributes(root_of(mapper))]
    return [place for place in found if place is not None] if None not in found else None


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
