"""The values that a flush has written: who has set them, and whether they depend on what was read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy.orm import InstanceState

from .data_flow import is_computed
from .places import Place
from .sent import conditions_of
from .transactions import Read, Write


def changed_attributes(state: InstanceState[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the column attributes that have another value than the row had, with the new value.

    After the flush, those that an SQL expression has set are expired and not among them.
    """
    unmodified = state.unmodified
    for attribute in state.mapper.column_attrs:
        if attribute.key not in unmodified:
            history = state.attrs[attribute.key].history
            if history.added and list(history.added) != list(history.deleted or ()):
                yield attribute.key, history.added[0]


def depends_on_read(name: str, write: Write, read: Read) -> bool:
    """Return whether the new value of this attribute depends on the row as it was read."""
    assigned = write.assigned.get(name)
    if assigned is None:  # changed in place: the rest of the value is as it was read
        return isinstance(write.changed[name], (dict, list, set))
    column = write.mapper.column_attrs[name].columns[0]
    if getattr(column, "key", None) in conditions_of(read.statement):
        return True
    mapper = write.mapper
    keys = {mapper.get_property_by_column(one).key for one in mapper.primary_key}
    columns = frozenset(mapper.column_attrs.keys())
    return is_computed(name, assigned, read.place, columns, frozenset(keys))


def place_of(name: str, write: Write) -> Place:
    """Return the line that has set this attribute, or else the line of the flush."""
    assigned = write.assigned.get(name)
    return (assigned or write.places)[0]


def place_of_change(write: Write) -> Place:
    """Return the line that has added or changed the object, or else the line of the flush."""
    if write.added is not None:
        return write.added[0]
    return next(iter(write.assigned.values()), write.places)[0]
