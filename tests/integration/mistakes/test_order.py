"""Locks taken in an order that ends in a deadlock."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_doclock import LockingSession, LockOptions, LockOrderViolation, LockUpgradeRefused
from tests.integration.mistakes.models import Customer, Order
from tests.support.actors import PATIENCE, Actor
from tests.support.waits import wait_until_blocked

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
PlainActors = tuple[Actor[Session], Actor[Session]]


def deadlock(
    one: Actor[Session],
    other: Actor[Session],
    first: Callable[[Session], object],
    second: Callable[[Session], object],
) -> None:
    """Let both take another step, and see the server end one of them."""
    steps = [one.starts(first)]
    wait_until_blocked(waiter=one, holder=other, step=steps[0])
    steps.append(other.starts(second))
    futures.wait(steps, timeout=PATIENCE, return_when=futures.FIRST_EXCEPTION)
    failures = [step for step in steps if step.done() and step.exception() is not None]
    assert len(failures) == 1
    assert isinstance(failures[0].exception(), DBAPIError)
    for actor, step in zip((one, other), steps, strict=True):
        if step in failures:
            actor.does(lambda session: session.rollback())
    for step in steps:
        if step not in failures:
            step.result()


def locks(entity: type[Any], ident: int, *, read: bool = False) -> Callable[[Session], object]:
    # On SQL Server, where with_for_update() compiles to nothing, whoever locks writes a hint.
    locked = sa.select(entity).where(entity.id == ident).with_for_update(read=read)
    locked = locked.with_hint(entity, "WITH (UPDLOCK, ROWLOCK)", "mssql")
    return lambda session: session.scalars(locked).one()


@pytest.mark.not_databases("sqlite")  # the file's lock is one
def test_documents_are_locked_in_any_order(
    plain_actors: PlainActors, alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    one, other = plain_actors
    one.does(locks(Order, 1))
    other.does(locks(Order, 2))
    deadlock(one, other, locks(Order, 2), locks(Order, 1))
    for actor in plain_actors:
        actor.does(lambda session: session.rollback())

    alice.does(lambda session: session.get_entities(Order, [2, 1], ForUpdate))
    step = bob.starts(
        lambda session: [o.id for o in session.get_entities(Order, [1, 2], ForUpdate)]
    )
    wait_until_blocked(waiter=bob, holder=alice, step=step)
    alice.does(lambda session: session.save_changes())
    assert step.result() == [1, 2]


@pytest.mark.not_databases("sqlite", "mssql")  # where UPDLOCK is granted beside a reader's S lock
def test_a_read_lock_that_becomes_a_write_lock(
    plain_actors: PlainActors, alice: Actor[LockingSession]
) -> None:
    one, other = plain_actors
    for actor in plain_actors:
        actor.does(locks(Order, 1, read=True))
    deadlock(one, other, locks(Order, 1), locks(Order, 1))
    for actor in plain_actors:
        actor.does(lambda session: session.rollback())

    alice.does(lambda session: session.get_entity(Order, 1, SharedRead))
    with pytest.raises(LockUpgradeRefused, match="take ForUpdate first"):
        alice.does(lambda session: session.get_entity(Order, 1, ForUpdate))


def test_a_read_lock_does_not_become_a_write_lock_anywhere(locking: LockingSession) -> None:
    kept = locking.get_entity(Order, 1, SharedRead)
    with pytest.raises(LockUpgradeRefused, match="take ForUpdate first"):
        locking.get_entity(Order, 1, ForUpdate)
    assert kept


@pytest.mark.not_databases("sqlite")
def test_classes_are_locked_against_their_order(
    plain_actors: PlainActors, engine: sa.Engine
) -> None:
    one, other = plain_actors
    one.does(locks(Order, 1))
    other.does(locks(Customer, 1))
    deadlock(one, other, locks(Customer, 1), locks(Order, 1))
    for actor in plain_actors:
        actor.does(lambda session: session.rollback())
    refuses_order(engine)


def test_classes_are_not_locked_against_their_order_anywhere(engine: sa.Engine) -> None:
    refuses_order(engine)


def refuses_order(engine: sa.Engine) -> None:
    with LockingSession(engine, lock_order=[Customer, Order]) as session:
        order = session.get_one_entity(Order, 1, ForUpdate)
        with pytest.raises(LockOrderViolation, match="Customer before Order"):
            session.get_entity(Customer, 1, ForUpdate)
        session.rollback()
        assert session.get_entity(Customer, 1, ForUpdate)
        assert session.get_entity(Order, 1, ForUpdate) is order
