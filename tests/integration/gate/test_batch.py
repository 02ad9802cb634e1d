"""A batch does not stand in the line, and tries only for what nobody else wants."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import DocumentGate, LockingSession, LockNotAvailable, LockOptions
from sa_doclock.features.gate import queues_of
from tests.integration.batch.batches import seeing_tries
from tests.integration.gate.queueing import in_use, wait_until_queued
from tests.integration.locking.steps import locks, roll_back
from tests.support.actors import Actor
from tests.support.models import Order

Player = Actor[LockingSession]
Makes = Callable[[], LockingSession]


@pytest.fixture
def makes_batches(engine: sa.Engine, gate: DocumentGate) -> Makes:
    return sessionmaker(engine, class_=LockingSession, gate=gate, priority="batch")


def test_it_takes_what_is_free(gate: DocumentGate, makes_batches: Makes) -> None:
    with makes_batches() as batch:
        assert locks(Order, 1)(batch).total == 30
        assert queues_of(gate).documents == {}


def test_it_does_not_even_try_while_another_has_it(
    gate: DocumentGate,
    engine: sa.Engine,
    makes_batches: Makes,
    alice: Player,
    dave: Callable[..., Player],
) -> None:
    batch = dave(makes_batches)
    alice.does(locks(Order, 1))
    with seeing_tries(engine) as tries:
        with pytest.raises(LockNotAvailable, match=r"not granted within 0\.3 s"):
            batch.does(locks(Order, 1, lock_timeout=0.3))
        assert tries.count == 0
    assert in_use(engine) == 1
    assert gate.waiting == 0


def test_it_comes_after_all_who_wait(
    gate: DocumentGate,
    makes_batches: Makes,
    alice: Player,
    bob: Player,
    dave: Callable[..., Player],
) -> None:
    alice.does(locks(Order, 1))
    queued = bob.starts(locks(Order, 1))
    wait_until_queued(gate, queued)
    batch = dave(makes_batches).starts(locks(Order, 1))
    alice.does(roll_back)
    queued.result()
    assert not batch.done()
    bob.does(roll_back)
    assert batch.result().total == 30


@pytest.mark.not_databases("sqlite", "mssql")  # where readers wait for nobody
def test_it_reads_beside_readers(
    alice: Player, makes_batches: Makes, dave: Callable[..., Player]
) -> None:
    alice.does(locks(Order, 1, LockOptions.SharedRead))
    assert dave(makes_batches).does(locks(Order, 1, LockOptions.SharedRead)).total == 30


def test_who_comes_behind_it_waits_for_the_database(
    gate: DocumentGate,
    engine: sa.Engine,
    makes_batches: Makes,
    alice: Player,
    dave: Callable[..., Player],
) -> None:
    batch = dave(makes_batches)
    batch.does(locks(Order, 1))
    with pytest.raises(LockNotAvailable):
        alice.does(locks(Order, 1, lock_timeout=0.05))
    batch.does(roll_back)
    assert alice.does(locks(Order, 1)).total == 30
    assert in_use(engine) == 1
    assert gate.waiting == 0
