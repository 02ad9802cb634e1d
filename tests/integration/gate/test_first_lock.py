"""A session that wants a document which another of this process has waits without a connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import DocumentGate, LockingSession, LockOptions
from sa_doclock.features.gate import queues_of
from tests.integration.gate.queueing import in_use, wait_until_queued
from tests.integration.locking.steps import add_ten, locks, roll_back, save
from tests.integration.timeouts.ways import WAYS
from tests.support.actors import Actor, Step
from tests.support.models import Customer, Order
from tests.support.waits import wait_until_blocked

Player = Actor[LockingSession]
Enter = Callable[[str], Player]
ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead


def test_the_waiters_have_no_connection(
    gate: DocumentGate, engine: sa.Engine, alice: Player, enter: Enter
) -> None:
    alice.does(add_ten)
    waiters = [enter(f"waiter {number}") for number in range(4)]
    steps = []
    for waiter in waiters:
        steps.append(waiter.starts(add_ten_and_save))
        wait_until_queued(gate, *steps)
    assert in_use(engine) == 1
    alice.does(save)
    assert [step.result() for step in steps] == [50, 60, 70, 80]  # in the order in which they came
    assert (gate.waiting, len(queues_of(gate).documents)) == (0, 0)


def add_ten_and_save(session: LockingSession) -> int:
    with session.locked(Order, 1) as order:
        order.total += 10
        return order.total


@pytest.mark.not_databases("sqlite")  # who waits for the file asks again and again
def test_by_default_one_of_them_waits_at_the_server(
    engine: sa.Engine, dave: Callable[..., Player]
) -> None:
    gate = DocumentGate()
    factory = sessionmaker(engine, class_=LockingSession, gate=gate)
    holder, first, second, third = (dave(factory) for _ in range(4))
    holder.does(locks(Order, 1))
    ahead = first.starts(add_ten_and_save)
    wait_until_blocked(waiter=first, holder=holder, step=ahead)
    steps = [second.starts(add_ten_and_save)]
    wait_until_queued(gate, *steps)
    steps.append(third.starts(add_ten_and_save))
    wait_until_queued(gate, *steps)
    assert in_use(engine) == 2
    holder.does(roll_back)
    assert [step.result() for step in (ahead, *steps)] == [40, 50, 60]


@pytest.mark.databases("sqlite")
def test_on_sqlite_the_file_is_the_document(
    gate: DocumentGate, engine: sa.Engine, alice: Player, bob: Player
) -> None:
    alice.does(locks(Order, 1))
    queued = bob.starts(locks(Order, 2))
    wait_until_queued(gate, queued)
    assert in_use(engine) == 1
    alice.does(save)
    assert queued.result().id == 2


@pytest.mark.not_databases("sqlite")
def test_another_document_is_served_meanwhile(
    gate: DocumentGate, alice: Player, bob: Player, carol: Player
) -> None:
    alice.does(locks(Order, 1))
    queued = bob.starts(locks(Order, 1))
    wait_until_queued(gate, queued)
    assert carol.does(locks(Order, 2)).total == 5
    assert carol.does(locks(Customer, 1)).name == "Ann"
    alice.does(roll_back)
    queued.result()


def test_each_way_to_lock_by_key_queues(gate: DocumentGate, alice: Player, bob: Player) -> None:
    by_key = [name for name in WAYS if "set" not in name and "two tables" not in name]
    for name in by_key:
        alice.does(locks(Order, 1))
        with queued_behind(alice, gate, bob.starts(WAYS[name])) as kept:
            assert not bob.connection_ids(), name
        bob.does(roll_back)
        del kept


def test_so_does_a_named_lock(gate: DocumentGate, alice: Player, bob: Player) -> None:
    alice.does(lambda session: session.lock_key("a"))
    with queued_behind(alice, gate, bob.starts(lambda session: session.lock_key("a"))):
        assert not bob.connection_ids()


@pytest.mark.not_databases("sqlite")
def test_many_documents_queue_for_each_of_them(
    gate: DocumentGate, alice: Player, bob: Player, carol: Player
) -> None:
    alice.does(locks(Order, 2))
    both = bob.starts(lambda session: session.get_entities(Order, [2, 1], ForUpdate))
    wait_until_queued(gate, both)
    behind = carol.starts(locks(Order, 1))  # which bob will have when he has both
    wait_until_queued(gate, both, behind)
    alice.does(roll_back)
    assert [order.id for order in both.result()] == [1, 2]
    bob.does(roll_back)
    assert behind.result().id == 1


@pytest.mark.not_databases("sqlite", "mssql")  # where readers wait for nobody
def test_readers_are_side_by_side_and_a_writer_is_alone(
    gate: DocumentGate, alice: Player, bob: Player, carol: Player
) -> None:
    alice.does(locks(Order, 1, SharedRead))
    bob.does(locks(Order, 1, SharedRead))
    with queued_behind(bob, gate, carol.starts(locks(Order, 1))) as writer:
        assert not carol.connection_ids()
        alice.does(roll_back)
        wait_until_queued(gate, writer)


@contextmanager
def queued_behind(holder: Player, gate: DocumentGate, step: Step[Any]) -> Iterator[Step[Any]]:
    """Look, in the block, at the step that waits; in the end it is let in and done."""
    wait_until_queued(gate, step)
    yield step
    holder.does(roll_back)
    step.result()
