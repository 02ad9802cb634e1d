"""A batch session never queues ahead of another session."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions
from tests.integration.batch.batches import Tries, seeing_tries
from tests.integration.locking.steps import locks
from tests.support.actors import Actor
from tests.support.models import Lease, Order
from tests.support.waits import poll_seconds_of, wait_until, wait_until_blocked, waits_at

pytestmark = pytest.mark.quick

ForUpdate = LockOptions.ForUpdate
Session = LockingSession
TEN = 10


@pytest.fixture
def batch_engine(make_engine: Callable[..., sa.Engine]) -> sa.Engine:
    return make_engine(pool_size=TEN + 1)


@pytest.fixture
def tries(batch_engine: sa.Engine) -> Iterator[Tries]:
    with seeing_tries(batch_engine) as tries:
        yield tries


@pytest.fixture
def workers(batch_engine: sa.Engine, dave: Callable[..., Actor[Session]]) -> list[Actor[Session]]:
    """Add ten workers."""
    return [dave(lambda: Session(batch_engine, priority="batch")) for _ in range(TEN)]


def add_one(session: Session) -> int:
    """Add one to the total of order 1, and commit."""
    with session.locked(Order, 1) as order:
        order.total += 1
        return order.total


def test_an_interactive_request_overtakes_ten_batch_workers(
    tries: Tries, workers: list[Actor[Session]], alice: Actor[Session], bob: Actor[Session]
) -> None:
    alice.does(locks(Order, 1))
    batch = [worker.starts(add_one) for worker in workers]
    tries.wait_for(TEN)
    interactive = bob.starts(locks(Order, 1))
    wait_until_blocked(waiter=bob, holder=alice, step=interactive)
    with tries.held_up(TEN):  # PostgreSQL and SQLite admit a try while bob wakes up
        alice.does(lambda session: session.rollback())
        assert interactive.result().total == 30  # no batch got there first
    assert not any(step.done() for step in batch)
    bob.does(lambda session: session.rollback())
    assert sorted(step.result() for step in batch) == list(range(31, 31 + TEN))


@pytest.mark.slow
@pytest.mark.not_databases("sqlite")  # it has no server to ask
def test_the_server_sees_none_of_them_wait(
    tries: Tries, workers: list[Actor[Session]], alice: Actor[Session]
) -> None:
    """MariaDB shows a row for a moment for each try that does not wait; a waiter's row stays."""
    alice.does(locks(Order, 1))
    batch = [worker.starts(add_one) for worker in workers]
    tries.wait_for(TEN)
    database = alice.database
    for _ in range(3):
        wait_until(lambda: not waits_at(database), poll_seconds=poll_seconds_of(database))
        tries.wait_for(1, each=max(tries.by_thread.values()) + 1)
    alice.does(lambda session: session.rollback())
    for step in batch:
        step.result()


@pytest.mark.not_databases("sqlite")
def test_an_interactive_session_waits_in_the_queue(
    tries: Tries, alice: Actor[Session], bob: Actor[Session], carol: Actor[Session]
) -> None:
    """The counterpart: without the priority, the first to arrive is the first to get the lock."""
    alice.does(locks(Order, 1))
    first = bob.starts(add_one)
    wait_until_blocked(waiter=bob, holder=alice, step=first)
    second = carol.starts(add_one)
    wait_until_blocked(waiter=carol, holder=alice, step=second)
    alice.does(lambda session: session.rollback())
    assert (first.result(), second.result()) == (31, 32)
    assert tries.count == 0


def test_every_way_to_lock_gives_way(
    batch_engine: sa.Engine,
    tries: Tries,
    dave: Callable[..., Actor[Session]],
    alice: Actor[Session],
) -> None:
    def hold(session: Session) -> None:
        session.get_one_entity(Order, 1, ForUpdate)
        session.get_one_entity(Lease, 1, ForUpdate)

    ways: list[Callable[[Session], object]] = [
        lambda session: session.get_document(Order, 1, ForUpdate),
        lambda session: session.get_entities(Order, [2, 1], ForUpdate),
        lambda session: session.get_entity(Lease, 1, ForUpdate),
        lambda session: session.scalars(session.entity_set(Order, ForUpdate)).all(),
        lambda session: session.scalars(session.entity_set(Lease, ForUpdate)).all(),
    ]
    for way in ways:
        worker = dave(lambda: Session(batch_engine, priority="batch"))
        alice.does(hold)
        step = worker.starts(way)
        tries.wait_for(1, each=max(tries.by_thread.values(), default=0) + 2)
        assert not step.done()
        alice.does(lambda session: session.rollback())
        assert step.result()
        worker.does(lambda session: session.rollback())
        tries.by_thread.clear()
