"""Every way to ask for order 1, and how to find out that it was not waited for as long as that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import pytest

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.support.models import Lease, Order

ForUpdate = LockOptions.ForUpdate
Way = Callable[..., Any]
"""Called with a session, and lock and lock_timeout by name."""

SHORT = 0.05
"""A lock_timeout that is over soon, in seconds."""


def by_block(session: LockingSession, lock: LockOptions = ForUpdate, **how: Any) -> None:
    with session.locked(Order, 1, lock, **how):
        pass


def by_set(session: LockingSession, lock: LockOptions = ForUpdate, **how: Any) -> Any:
    return session.scalars(session.entity_set(Order, lock, **how).order_by(Order.id)).all()


def by_set_of_two_tables(session: LockingSession, lock: LockOptions = ForUpdate, **how: Any) -> Any:
    return session.scalars(session.entity_set(Lease, lock, **how)).all()


WAYS: Mapping[str, Way] = {
    "get_entity": lambda session, lock=ForUpdate, **how: session.get_entity(Order, 1, lock, **how),
    "get_one_entity": lambda session, lock=ForUpdate, **how: session.get_one_entity(
        Order, 1, lock, **how
    ),
    "get_entities": lambda session, lock=ForUpdate, **how: session.get_entities(
        Order, [2, 1], lock, **how
    ),
    "get_document": lambda session, lock=ForUpdate, **how: session.get_document(
        Order, 1, lock, **how
    ),
    "get_documents": lambda session, lock=ForUpdate, **how: session.get_documents(
        Order, [1], lock, **how
    ),
    "locked": by_block,
    "entity_set": by_set,
    "of two tables": lambda session, lock=ForUpdate, **how: session.get_entity(
        Lease, 1, lock, **how
    ),
    "some of two tables": lambda session, lock=ForUpdate, **how: session.get_entities(
        Lease, [1], lock, **how
    ),
    "set of two tables": by_set_of_two_tables,
}


def hold(session: LockingSession) -> None:
    """Hold what all of the ways above ask for."""
    session.get_one_entity(Order, 1, ForUpdate)
    session.get_one_entity(Lease, 1, ForUpdate)


def given_up(session: LockingSession, way: Way, **how: Any) -> LockNotAvailable:
    """Ask for what another holds; the transaction is begun here, or the caller's."""
    begun = session.in_transaction()
    with pytest.raises(LockNotAvailable) as caught:
        way(session, **how)
    assert session.in_transaction() is begun
    assert caught.value.waited > 0
    return caught.value


def in_savepoint(session: LockingSession) -> Any:
    """Lose nothing of what was done before, where an error would end the transaction."""
    return session.begin_nested() if session.in_transaction() else nullcontext()
