"""Histograms of waits and holds; counters of outcomes, deadlocks and retries."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import (
    DeadlockDetected,
    LockingSession,
    LockNotAvailable,
    LockOptions,
    run_transaction,
)
from tests.integration.locking.crosswise import cross
from tests.integration.locking.steps import locks
from tests.integration.telemetry.conftest import Recorded
from tests.support.actors import Actor
from tests.support.models import Contract, Customer, Lease, Order

pytestmark = [
    pytest.mark.databases("sqlite", "postgresql"),
    pytest.mark.read_committed,
]

ForUpdate, NoWait = LockOptions.ForUpdate, LockOptions.NoWait
Session = LockingSession


def test_names_and_units_and_buckets(session: Session, reported: Recorded) -> None:
    with session.locked(Order, 1):
        pass
    assert reported.units() == {
        "doclock.lock.wait": "s",
        "doclock.lock.held": "{lock}",
        "doclock.lock.hold": "s",
        "doclock.lock.outcomes": "{lock}",
    }
    (wait,) = reported.points("doclock.lock.wait")
    (hold,) = reported.points("doclock.lock.hold")
    assert wait.explicit_bounds[:3] == hold.explicit_bounds[:3] == (0.001, 0.005, 0.01)
    assert hold.explicit_bounds[-1] == 1800
    assert wait.sum > 0
    assert hold.sum > 0


def test_outcomes_and_ends(session: Session, other: Session, reported: Recorded) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    for _ in range(2):
        with pytest.raises(LockNotAvailable):
            session.get_entity(Order, 1, ForUpdate | NoWait)
    other.commit()
    session.get_entities(Order, [1, 2], ForUpdate)
    session.lock_key("a name")
    session.rollback()
    outcomes = {
        ("Order", "ForUpdate", "granted"): 2,
        ("Order", "ForUpdate|NoWait", "not_available"): 2,
        ("key", "ForUpdate", "granted"): 1,
    }
    assert reported.sums("doclock.lock.outcomes") == outcomes
    assert reported.sums("doclock.lock.wait") == outcomes
    assert reported.sums("doclock.lock.hold") == {
        ("committed", "Order", "ForUpdate"): 1,
        ("rolled_back", "Order", "ForUpdate"): 2,
        ("rolled_back", "key", "ForUpdate"): 1,
    }
    assert reported.sums("doclock.lock.deadlocks") == {}


def test_subclasses_count_with_their_header(session: Session, reported: Recorded) -> None:
    session.get_one_entity(Lease, 1, ForUpdate)
    session.commit()
    assert reported.spans[0].name == "lock Lease"
    for name in ("doclock.lock.wait", "doclock.lock.hold", "doclock.lock.outcomes"):
        (point,) = reported.points(name)
        assert point.attributes["doclock.entity"] == Contract.__name__


@pytest.mark.not_databases("sqlite")
def test_a_deadlock_of_locks(
    alice: Actor[Session], bob: Actor[Session], reported: Recorded
) -> None:
    alice.does(locks(Order, 1))
    bob.does(locks(Order, 2))
    loser, _, winner, step = cross(alice, bob, lambda ident: locks(Order, ident))
    step.result()
    for actor in (loser, winner):
        actor.does(lambda session: session.rollback())
    assert reported.sums("doclock.lock.deadlocks") == {("Order", "ForUpdate"): 1}
    assert reported.sums("doclock.lock.outcomes") == {
        ("Order", "ForUpdate", "granted"): 3,
        ("Order", "ForUpdate", "deadlock"): 1,
    }


def flush_name(ident: int) -> Callable[[Session], None]:
    def step(session: Session) -> None:
        session.get_one(Customer, ident).name = "changed"
        session.flush()

    return step


@pytest.mark.not_databases("sqlite")
def test_a_deadlock_of_writes(
    alice: Actor[Session], bob: Actor[Session], reported: Recorded
) -> None:
    alice.does(locks(Order, 1))
    alice.does(flush_name(1))
    bob.does(flush_name(2))
    loser, _, winner, step = cross(alice, bob, flush_name)
    step.result()
    for actor in (loser, winner):
        actor.does(lambda session: session.rollback())
    (deadlock,) = reported.points("doclock.lock.deadlocks")
    assert deadlock.value == 1
    assert sum(reported.sums("doclock.lock.outcomes").values()) == 2
    assert len(reported.spans) == 1


def test_retries(session_factory: sessionmaker[Session], reported: Recorded) -> None:
    errors = [DeadlockDetected("made up", entity=Order, ident=1, lock=ForUpdate) for _ in range(3)]

    def fail(session: Session) -> None:
        session.get_one_entity(Order, 1, ForUpdate)
        raise errors.pop()

    with pytest.raises(DeadlockDetected):
        run_transaction(session_factory, fail, attempts=3, backoff=0)
    assert reported.sums("doclock.transaction.retries") == {
        ("Order", "retried", "DeadlockDetected"): 2,
        ("Order", "given_up", "DeadlockDetected"): 1,
    }
    assert reported.sums("doclock.lock.hold") == {("rolled_back", "Order", "ForUpdate"): 3}


@pytest.mark.not_databases("sqlite")
def test_a_real_conflict_that_is_retried(
    session_factory: sessionmaker[Session], engine: sa.Engine, reported: Recorded
) -> None:
    factory = sessionmaker(
        engine.execution_options(isolation_level="REPEATABLE READ"), class_=LockingSession
    )
    runs = []

    def rename(session: Session) -> None:
        runs.append(session)
        customer = session.get_one(Customer, 1)
        if len(runs) == 1:
            with session_factory.begin() as other:
                other.get_one(Customer, 1).name = "other"
        customer.name = "mine"
        session.flush()

    run_transaction(factory, rename, backoff=0)
    (retry,) = reported.points("doclock.transaction.retries")
    assert (retry.value, retry.attributes["doclock.outcome"]) == (1, "retried")
    assert retry.attributes["error.type"] == "SnapshotConflict"
