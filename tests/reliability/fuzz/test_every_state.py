"""Every way, in every state and one state after another: chance leaves none of them out."""

from __future__ import annotations

from itertools import product

import pytest

from sa_doclock import DocLockError
from tests.reliability.fuzz.asking import QUEUEING, Sessions, Wish, answer
from tests.reliability.fuzz.entities import CLASSES
from tests.reliability.fuzz.states import AFTERWARDS, STATES, brought_by
from tests.reliability.fuzz.test_by_key import WAYS

PLAIN = CLASSES["plain"]


def _ask(served: Sessions, way: str, wish: Wish) -> bool:
    """Return whether the lock was sent; else it was refused, or the session has no such state."""
    found = answer(
        served,
        wish,
        lambda session: WAYS[way](session, PLAIN.entity, PLAIN.key, wish.lock),
        held=brought_by(wish.state, wish.lock),
    )
    if found is None:
        return False
    assert found.error is None or isinstance(found.error, DocLockError), (way, wish)
    assert found.lacks is None, (way, wish, found.received)
    return found.error is None


@pytest.mark.parametrize("way", WAYS)
def test_every_way_locks_in_every_state_or_refuses(served: Sessions, way: str) -> None:
    received = [
        _ask(served, way, Wish(PLAIN, lock, state=state))
        for lock, state in product(QUEUEING, STATES)
    ]
    assert sum(received) > len(received) / 3


def test_every_state_may_follow_another(served: Sessions) -> None:
    received = [
        _ask(served, "get_entity", Wish(PLAIN, lock, state=state, then=then))
        for lock, state, then in product(QUEUEING, STATES, AFTERWARDS)
    ]
    assert sum(received) > len(received) / 3


def test_a_session_in_no_state_at_all_locks(served: Sessions) -> None:
    assert all(_ask(served, way, Wish(PLAIN, lock)) for way, lock in product(WAYS, QUEUEING))
