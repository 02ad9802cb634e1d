"""Two transactions that wait for each other's keys, or for a key and a row."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import PendingRollbackError

from sa_doclock import DeadlockDetected, LockingSession, LockNotAvailable
from tests.integration.locking.crosswise import NAMES, rename
from tests.integration.locking.steps import locks
from tests.integration.named_locks.keys import KEY, takes
from tests.support.actors import PATIENCE, Actor
from tests.support.models import Order
from tests.support.waits import wait_until_blocked

pytestmark = [
    pytest.mark.not_databases("sqlite"),  # one lock for the file
    pytest.mark.read_committed,
]

Session = Actor[LockingSession]
Run = Callable[..., list[Any]]


def test_one_of_two_gets_an_error_and_has_written_nothing(
    alice: Session, bob: Session, elsewhere: Run
) -> None:
    for actor, ident in ((alice, 1), (bob, 2)):
        actor.does(takes(f"key:{ident}"))
        actor.does(rename(ident, "by the loser"))
    steps = {alice: alice.starts(takes("key:2"))}
    wait_until_blocked(waiter=alice, holder=bob, step=steps[alice])
    steps[bob] = bob.starts(takes("key:1"))
    futures.wait(steps.values(), timeout=PATIENCE, return_when=futures.FIRST_EXCEPTION)
    lost = steps[alice].done() and steps[alice].exception() is not None
    loser, winner = (alice, bob) if lost else (bob, alice)
    failure = steps[loser].exception()
    assert isinstance(failure, DeadlockDetected)
    assert failure.retryable
    assert str(failure).startswith(f"named lock '{failure.ident}' FOR UPDATE on ")
    with pytest.raises(PendingRollbackError):
        loser.does(LockingSession.commit)
    if alice.database.name != "postgresql":  # which has given up what the loser held
        assert not steps[winner].done()
    loser.does(LockingSession.rollback)
    steps[winner].result()
    winner.does(LockingSession.rollback)
    assert elsewhere(NAMES) == [(1, "Ann"), (2, "Ben")]
    loser.does(takes("key:1"))
    loser.does(takes("key:2"))


@pytest.mark.databases("postgresql", "mssql")
def test_a_circle_of_a_key_and_a_row_is_seen(alice: Session, bob: Session) -> None:
    alice.does(takes())
    bob.does(locks(Order, 1))
    steps = [alice.starts(locks(Order, 1))]
    wait_until_blocked(waiter=alice, holder=bob, step=steps[0])
    steps.append(bob.starts(takes()))
    futures.wait(steps, timeout=PATIENCE, return_when=futures.FIRST_EXCEPTION)
    (failure,) = [step.exception() for step in steps if step.done() and step.exception()]
    assert isinstance(failure, DeadlockDetected)
    for actor in (alice, bob):
        actor.starts(LockingSession.rollback)


@pytest.mark.databases("mysql", "mariadb")
def test_where_nobody_sees_it_the_wait_for_the_key_has_an_end(alice: Session, bob: Session) -> None:
    alice.does(takes())
    bob.does(locks(Order, 1))
    queued = alice.starts(locks(Order, 1))
    wait_until_blocked(waiter=alice, holder=bob, step=queued)
    bob.does(lambda session: session.execute(sa.text("SET innodb_lock_wait_timeout = 1")))
    with pytest.raises(LockNotAvailable, match=r"'user:42'.*the server's own limit"):
        bob.does(takes(KEY))
    assert not queued.done()
    bob.does(LockingSession.rollback)
    queued.result()
