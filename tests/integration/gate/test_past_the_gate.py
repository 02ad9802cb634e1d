"""Locks that do not queue at the gate ask the database, as without one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from sa_doclock import DocumentGate, LockingSession, LockNotSupported, LockOptions
from sa_doclock.features.gate import queues_of
from tests.integration.locking.steps import locks, roll_back
from tests.support.actors import Actor
from tests.support.models import Customer, Order
from tests.support.waits import wait_until_blocked

Player = Actor[LockingSession]
Session = LockingSession
ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead


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
