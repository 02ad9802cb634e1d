"""The pending changes of a session at one moment, to be compared with those of a later one."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Set as AbstractSet
from typing import Any, Final

from sqlalchemy.orm import InstanceState, Session

from ...sqlalchemy_internals import states_to_flush

PendingChange = tuple[InstanceState[Any], str, int]
"""An object, the attribute that has a change, and the id of its value; for "new" and "deleted", of nothing."""

NO_CHANGES: Final[AbstractSet[PendingChange]] = frozenset()

PENDING_BEFORE: Final = "sa_doclock_pending_before"
"""The execution option with the pending changes of before the listeners of the program."""


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
