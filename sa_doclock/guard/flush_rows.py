"""The rows that a flush writes, by class; and those of them that need no second check."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy.orm import InstanceState, Session

from ..documents import notify_in_time
from ..sqlalchemy_internals import deleted_states, modified_states, new_states
from .rules import WriteRules, rules_for

States = Collection[InstanceState[Any]]


class Write(enum.Enum):
    """The kinds of writes, in the words of the error."""

    INSERT = "inserted"
    UPDATE = "changed"
    DELETE = "deleted"


RowsOfClass = tuple[Write, WriteRules, list[InstanceState[Any]]]
"""The rows of one class that a flush writes in one way."""

CheckedRows = Mapping[InstanceState[Any], Callable[[Mapping[str, Any]], bool]]
"""Rows that were held when their flush began, each with the test of its changes: where it is true,
the row is not to be checked again."""

_NO_ROWS: Final[CheckedRows] = MappingProxyType({})

# Global: the event of a row that was checked need not look for its session, and for the guard.
# What another flush of the thread has put here since has none of the rows of this one.
last_flush: Final[ContextVar[CheckedRows]] = ContextVar("sa_doclock.last_flush", default=_NO_ROWS)

checked_rows: Final = last_flush.get
"""Return the checked rows of the flush that has begun last."""


def not_checked(_changes: Mapping[str, Any]) -> bool:
    """Return False, as the test of rows that were not checked."""
    return False


def rows_of_flush(session: Session) -> list[RowsOfClass]:
    """Return the rows that a flush is about to write, but for those that the guard never checks."""
    last_flush.set(_NO_ROWS)
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
