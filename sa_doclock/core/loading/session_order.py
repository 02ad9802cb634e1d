"""The order of a session's objects, for an error that names one of several."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, TypeVar

from sqlalchemy.orm import InstanceState, Session

from ...sqlalchemy_internals import new_states

T = TypeVar("T")


def in_session_order(
    session: Session, found: Iterable[T], state_of: Callable[[T], InstanceState[Any] | None]
) -> list[T]:
    """Return the found objects in the order in which they came to the session, new ones first.

    A session lists most of its objects as a set: without this an error would name another
    one in each run.  The whole session is gone through, so it is for errors alone.
    """
    found = list(found)
    if len(found) <= 1:
        return found
    states = {state_of(one) for one in found}
    known = chain(new_states(session), session.identity_map.all_states())
    places = {state: place for place, state in enumerate(known) if state in states}

    def place(one: T) -> int:
        state = state_of(one)
        return -1 if state is None else places.get(state, len(places))

    return sorted(found, key=place)
