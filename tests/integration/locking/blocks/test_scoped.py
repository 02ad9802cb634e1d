"""A LockingScopedSession takes the locks of its session, one session for each scope."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingScopedSession, LockingSession, LockOptions
from tests.integration.locking.steps import add_ten, save
from tests.support.actors import Actor
from tests.support.models import Order
from tests.support.waits import wait_until_blocked

FOR_UPDATE, NO_WAIT = LockOptions.ForUpdate, LockOptions.ForUpdate | LockOptions.NoWait
ORDER_1 = (Order, (1,))
Scoped = LockingScopedSession[LockingSession]


def add_one(scoped: Scoped) -> int:
    with scoped.locked(Order, 1) as order:
        assert dict(scoped.held_locks) == {ORDER_1: FOR_UPDATE}
        order.total += 1
    total = scoped.get_one(Order, 1).total
    scoped.remove()
    return total


def test_a_block_waits_and_reads_what_the_holder_wrote(
    session_factory: sessionmaker[LockingSession], alice: Actor[Any], bob: Actor[Any]
) -> None:
    scoped = LockingScopedSession(session_factory)
    alice.does(add_ten)
    queued = bob.starts(lambda _: add_one(scoped))  # his thread is a scope
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == 41
    assert not scoped.registry.has()  # in this thread, nobody has asked for one


def test_every_method_is_that_of_the_session(
    session_factory: sessionmaker[LockingSession],
) -> None:
    scoped = LockingScopedSession(session_factory)
    events: list[str] = []
    order = scoped.get_one_entity(Order, 1)
    assert not scoped.held_locks
    scoped.rollback()
    assert scoped.lock(order, FOR_UPDATE) is order
    assert scoped.get_entity(Order, 1, FOR_UPDATE) is order
    assert [one.id for one in scoped.get_entities(Order, [2, 1], order="given")] == [2, 1]
    scoped.release_locks()
    with scoped.locked_document(Order, 1) as order:
        assert "lines" in vars(order)
        assert scoped.get_document(Order, 1) is scoped.get_one_document(Order, 1) is order
        scoped.on_commit(lambda: events.append("committed"))
    assert events == ["committed"]
    with scoped.locked_documents(Order, [2, 1]) as (two, one):
        assert [two, one] == scoped.get_documents(Order, [1, 2], order="key")[::-1]
    every = scoped.scalars(scoped.entity_set(Order, FOR_UPDATE).order_by(Order.id)).all()
    assert set(scoped.held_locks) == {(Order, (order.id,)) for order in every}
    with scoped.unguarded():
        one.total = 7
    scoped.lock_key("prices")
    scoped.save_changes()
    assert not scoped.held_locks
    assert scoped.scalar(sa.select(Order.total).where(Order.id == 1)) == 7
    scoped.remove()


def test_the_end_of_the_scope_releases_the_locks(
    session_factory: sessionmaker[LockingSession], other: LockingSession
) -> None:
    scoped = LockingScopedSession(session_factory)
    scoped.get_one_entity(Order, 1, FOR_UPDATE).total = 7
    scoped.remove()
    assert other.get_one_entity(Order, 1, NO_WAIT).total == 30
