"""The rows that a flush writes, by class; and those of them that need no second check."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Any

from sqlalchemy.orm import InstanceState, Session

from ...core.documents import notify_in_time
from ...core.sqlalchemy_internals import deleted_states, modified_states, new_states
from .rules import WriteRules, rules_for

States = Collection[InstanceState[Any]]


class Write(enum.Enum):
    """The kinds of writes, in the words of the error."""

    INSERT = "inserted"
    UPDATE = "changed"
    DELETE = "deleted"


RowsOfClass = tuple[Write, WriteRules, list[InstanceState[Any]]]
"""The rows of one class that a flush writes in one way."""


class CheckedRows:
    """The rows of a flush that were held when it began, each with the changes that need a look.

    One of them is not checked again, unless a change of such an attribute has come meanwhile.
    """

    def __init__(self) -> None:
        self._attributes: dict[InstanceState[Any], frozenset[str]] = {}

    def add(self, states: States, attributes: frozenset[str]) -> None:
        """Add rows; ``attributes`` are those by which such a row comes to another document."""
        self._attributes.update(dict.fromkeys(states, attributes))

    def has(self, state: InstanceState[Any]) -> bool:
        """Return whether the row was held when the flush began."""
        return state in self._attributes

    def is_unchanged(self, state: InstanceState[Any]) -> bool:
        """Return whether the row was held then, and is of no other document now."""
        attributes = self._attributes.get(state)
        return attributes is not None and attributes.isdisjoint(state.committed_state)

    def clear(self) -> None:
        """Forget the rows: another flush begins, or the transaction has ended."""
        self._attributes.clear()


def rows_of_flush(session: Session) -> list[RowsOfClass]:
    """Return the rows that a flush is about to write, but for those that the guard never checks."""
    notify_in_time()  # before anything is checked, the rows of all documents must be listened to
    new, changed, deleted = new_states(session), modified_states(session), deleted_states(session)
    if new or deleted:
        # Not -=, which would change the set of the session.
        return rows_by_class(new, changed - deleted, deleted)
    return list(_by_class(Write.UPDATE, changed))


def rows_by_class(new: States, changed: States, deleted: States) -> list[RowsOfClass]:
    """Return the rows of these objects, but for those that the guard never checks."""
    return [
        *_by_class(Write.INSERT, new),
        *_by_class(Write.UPDATE, changed),
        *_by_class(Write.DELETE, deleted),
    ]


def _by_class(write: Write, states: States) -> Iterator[RowsOfClass]:
    found: dict[type[Any], list[InstanceState[Any]]] = defaultdict(list)
    for state in states:
        found[state.class_].append(state)  # a class, and no mapper, has its hash from C
    for some in found.values():
        rules = rules_for(some[0].manager.mapper)
        if rules is not None:
            yield write, rules, some
