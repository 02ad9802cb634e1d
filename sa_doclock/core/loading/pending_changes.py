"""The pending changes of a session at one moment, for later comparison, and the order of its objects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Any, Final, TypeVar

from sqlalchemy.orm import InstanceState, Session

from ...sqlalchemy_internals import new_states, states_to_flush

PendingChange = tuple[InstanceState[Any], str, int]
"""An object, the changed attribute, and the id of its value; for "new" and "deleted", of nothing."""

NO_CHANGES: Final[AbstractSet[PendingChange]] = frozenset()

PENDING_BEFORE: Final = "sa_doclock_pending_before"
"""The execution option with the pending changes from before the program's listeners ran."""


def pending_changes(session: Session) -> AbstractSet[PendingChange]:
    """Return the changes that a flush would write."""
    new, modified, deleted = states_to_flush(session)
    if not (new or modified or deleted):
        return NO_CHANGES
    changes = {
        (state, name, id(state.dict.get(name)))
        for state in [*modified]
        for name in [*state.committed_state]
    }
    changes.update((state, "new", 0) for state in new)
    changes.update((state, "deleted", 0) for state in deleted)
    return changes


def changed_since(
    session: Session, before: AbstractSet[PendingChange]
) -> Collection[InstanceState[Any]]:
    """Return the objects with changes that were not pending then, each once."""
    return dict.fromkeys(state for state, *_ in pending_changes(session) - before)


T = TypeVar("T")


def in_session_order(
    session: Session, found: Iterable[T], state_of: Callable[[T], InstanceState[Any] | None]
) -> list[T]:
    """Return the found objects in the order in which they entered the session, new ones first.

    A session lists most of its objects as a set: without this, an error would name another one in
    each run.  It searches the whole session, so it is for errors only.
    """
    found = list(found)
    if len(found) <= 1:
        return found
    states = {state_of(instance) for instance in found}
    known = chain(new_states(session), session.identity_map.all_states())
    places = {state: place for place, state in enumerate(known) if state in states}

    def place(instance: T) -> int:
        state = state_of(instance)
        return -1 if state is None else places.get(state, len(places))

    return sorted(found, key=place)
