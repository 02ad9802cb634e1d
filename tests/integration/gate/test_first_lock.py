"""Waiting for a document that another session of the process holds takes no connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import DocumentGate, LockingSession, LockNotSupported, LockOptions
from sa_doclock.features.gate import queues_of
from tests.integration.gate.queueing import in_use, wait_until_queued
from tests.integration.locking.steps import add_ten, locks, roll_back, save
from tests.integration.timeouts.ways import WAYS
from tests.support.actors import Actor, Step
from tests.support.models import Customer, Order
from tests.support.waits import wait_until_blocked

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead


Player = Actor[LockingSession]
Enter = Callable[[str], Player]


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
    assert [step.result() for step in steps] == [50, 60, 70, 80]  # in order of arrival
    assert (gate.waiting, len(queues_of(gate).documents)) == (0, 0)


def add_ten_and_save(session: LockingSession) -> int:
    with session.locked(Order, 1) as order:
        order.total += 10
        return order.total


@pytest.mark.not_databases("sqlite")  # a waiter for the file polls
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
    behind = carol.starts(locks(Order, 1))  # bob will have it when he has both
    wait_until_queued(gate, both, behind)
    alice.does(roll_back)
    assert [order.id for order in both.result()] == [1, 2]
    bob.does(roll_back)
    assert behind.result().id == 1


@pytest.mark.not_databases("sqlite", "mssql")  # there readers do not wait
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
    """Check the waiting step in the block; at the end it is admitted and finishes."""
    wait_until_queued(gate, step)
    yield step
    holder.does(roll_back)
    step.result()


# --------------------------------------------------------------------------------------------------
# Locks that do not queue at the gate ask the database, as they do without a gate.

Session = LockingSession


@pytest.mark.parametrize("lock", [LockOptions.SnapshotRead, LockOptions.NoLock, LockOptions.None_])
def test_who_waits_for_nobody_does_not_queue(alice: Player, bob: Player, lock: LockOptions) -> None:
    alice.does(locks(Order, 1))
    assert bob.does(locks(Order, 1, lock)).total == 30


@pytest.mark.databases("sqlite", "mssql")
def test_readers_of_a_snapshot_do_not_queue(alice: Player, bob: Player) -> None:
    alice.does(locks(Order, 1))
    assert bob.does(locks(Order, 1, SharedRead)).total == 30


@pytest.mark.not_databases("sqlite")
def test_skip_locked_leaves_out_and_does_not_queue(alice: Player, bob: Player) -> None:
    def free(session: Session) -> list[int]:
        skipping = ForUpdate | LockOptions.SkipLocked
        return [order.id for order in session.get_entities(Order, [1, 2], skipping)]

    alice.does(locks(Order, 1))
    assert bob.does(free) == [2]


def test_a_document_that_is_held_is_not_queued_for(alice: Player) -> None:
    def twice(session: Session) -> bool:
        return locks(Order, 1)(session) is locks(Order, 1)(session)

    assert alice.does(twice)


@pytest.mark.read_committed
def test_who_has_a_connection_goes_past_the_gate(
    gate: DocumentGate, alice: Player, bob: Player
) -> None:
    def read_then_lock(session: Session) -> Order:
        session.get(Customer, 1)
        return session.get_one_entity(Order, 1, ForUpdate)

    alice.does(locks(Order, 1))
    queued = bob.starts(read_then_lock)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    assert gate.waiting == 0
    alice.does(roll_back)
    queued.result()


def test_so_does_who_was_lent_one(
    gate: DocumentGate, engine: sa.Engine, dave: Callable[..., Player]
) -> None:
    with engine.connect() as connection:
        lent = dave(lambda: LockingSession(connection, gate=gate))
        lent.does(locks(Order, 1))
        assert queues_of(gate).documents == {}
        lent.does(roll_back)


@pytest.mark.databases("sqlite")
def test_what_is_not_supported_is_reported_at_once(alice: Player, bob: Player) -> None:
    alice.does(locks(Order, 1))
    with pytest.raises(LockNotSupported, match="nothing to skip"):
        bob.does(
            lambda session: session.get_entities(Order, [1], ForUpdate | LockOptions.SkipLocked)
        )


# --------------------------------------------------------------------------------------------------
# A key that the row spells differently keeps its place until the transaction ends.


@pytest.mark.parametrize("ident", ["1", 1], ids=repr)
def test_who_spells_it_so_too_waits_at_the_gate(
    gate: DocumentGate, alice: Player, bob: Player, ident: Any
) -> None:
    alice.does(locks(Order, ident))
    queued = bob.starts(locks(Order, ident))
    wait_until_queued(gate, queued)
    alice.does(roll_back)
    assert queued.result().id == 1
    bob.does(roll_back)
    assert queues_of(gate).documents == {}


@pytest.mark.not_databases("sqlite")  # as with an exact key
def test_with_the_savepoint_that_it_was_taken_in(
    gate: DocumentGate, session: LockingSession
) -> None:
    with session.begin():
        savepoint = session.begin_nested()
        kept = session.get_entity(Order, "1", ForUpdate)
        assert len(queues_of(gate).documents) == 1
        savepoint.rollback()
        assert queues_of(gate).documents == {}
    del kept


def test_several_have_theirs_as_long_as_the_locks(
    gate: DocumentGate, session: LockingSession
) -> None:
    kept = session.get_entities(Order, ["1", "2"], ForUpdate)
    file_has_one = session.get_bind().dialect.name == "sqlite"
    assert len(queues_of(gate).documents) == (1 if file_has_one else 2)
    session.rollback()
    assert queues_of(gate).documents == {}
    del kept


def test_a_row_that_is_missing_has_none(gate: DocumentGate, session: LockingSession) -> None:
    assert session.get_entity(Order, "99", ForUpdate) is None
    assert queues_of(gate).documents == {}
