"""A key that the row spells in another way has its place until the transaction ends."""

from __future__ import annotations

from typing import Any

import pytest

from sa_doclock import DocumentGate, LockingSession, LockOptions
from sa_doclock.features.gate import queues_of
from tests.integration.gate.queueing import wait_until_queued
from tests.integration.locking.steps import locks, roll_back
from tests.support.actors import Actor
from tests.support.models import Order

Player = Actor[LockingSession]
ForUpdate = LockOptions.ForUpdate


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
