"""ORDER BY and LIMIT of a set that has waited on PostgreSQL, as its page in the documentation says."""

from __future__ import annotations

import pytest

from sa_doclock import LockingSession, LockOptions
from tests.support.actors import Actor
from tests.support.models import Order
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.quick

ForUpdate = LockOptions.ForUpdate


@pytest.mark.databases("postgresql")
def test_the_order_is_that_of_before_the_wait(
    alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    def change(session: LockingSession) -> None:
        session.get_one_entity(Order, 2, ForUpdate).total = 100
        session.flush()

    def ordered(session: LockingSession) -> list[tuple[int, int]]:
        statement = session.entity_set(Order, ForUpdate).order_by(Order.total)
        return [(order.id, order.total) for order in session.scalars(statement)]

    alice.does(change)
    step = bob.starts(ordered)
    wait_until_blocked(waiter=bob, holder=alice, step=step)
    alice.does(lambda session: session.save_changes())
    assert step.result() == [(2, 100), (1, 30)]


@pytest.mark.databases("postgresql")
def test_limit_counts_in_the_order_of_before_the_wait(
    alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    def change(session: LockingSession) -> None:
        session.get_one_entity(Order, 2, ForUpdate).total = 100
        session.flush()

    def first(session: LockingSession) -> list[int]:
        statement = session.entity_set(Order, ForUpdate).order_by(Order.total).limit(1)
        return [order.id for order in session.scalars(statement)]

    alice.does(change)
    step = bob.starts(first)
    wait_until_blocked(waiter=bob, holder=alice, step=step)
    alice.does(lambda session: session.save_changes())
    assert step.result() == [2]  # order 1 comes first now
