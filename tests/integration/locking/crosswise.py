"""Two actors who each have what the other wants."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
from typing import Any

import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions
from tests.support.actors import PATIENCE, Actor, Step
from tests.support.models import Customer, Order
from tests.support.waits import wait_until_blocked

Session = Actor[LockingSession]

TOTALS = sa.select(Order.id, Order.total).order_by(Order.id)
NAMES = sa.select(Customer.id, Customer.name).order_by(Customer.id)


def set_total(ident: int, total: int) -> Callable[[LockingSession], Order]:
    """Make the step that locks and changes one order; not committed yet."""

    def step(session: LockingSession) -> Order:
        order = session.get_one_entity(Order, ident, LockOptions.ForUpdate)
        order.total = total
        session.flush()
        return order

    return step


def rename(ident: int, name: str) -> Callable[[LockingSession], None]:
    """Make the step that writes a row which it has not locked; not committed yet."""

    def step(session: LockingSession) -> None:
        session.get_one(Customer, ident).name = name
        session.flush()

    return step


def cross(
    alice: Session, bob: Session, step: Callable[[int], Callable[[LockingSession], Any]]
) -> tuple[Session, BaseException, Session, Step[Any]]:
    """Let alice, who has 1, ask for 2, and bob, who has 2, for 1; tell who lost, and how."""
    steps = {alice: alice.starts(step(2))}
    wait_until_blocked(waiter=alice, holder=bob, step=steps[alice])
    steps[bob] = bob.starts(step(1))
    futures.wait(steps.values(), timeout=PATIENCE, return_when=futures.FIRST_EXCEPTION)
    lost = steps[alice].done() and steps[alice].exception() is not None
    loser, winner = (alice, bob) if lost else (bob, alice)
    failure = steps[loser].exception()
    assert failure is not None
    return loser, failure, winner, steps[winner]


def write(session: LockingSession) -> None:
    """Try to write, in one statement, what must not be in the database afterwards."""
    session.execute(sa.update(Customer).values(name="escaped"))
