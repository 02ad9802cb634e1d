"""Waits for a named lock, their timeouts, and later reads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import PendingRollbackError

from sa_doclock import DeadlockDetected, LockingSession, LockNotAvailable
from tests.integration.locking.steps import NAMES, locks, read_again, rename, roll_back, save
from tests.integration.named_locks.conftest import KEY, finds_taken, takes
from tests.support.actors import PATIENCE, Actor
from tests.support.models import Order
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.quick


Session = Actor[LockingSession]

not_sqlite = pytest.mark.not_databases("sqlite")  # one lock for the file
SHARED = ("postgresql", "mssql")


@pytest.mark.parametrize("end", [save, roll_back, LockingSession.close])
def test_the_second_waits_until_the_transaction_of_the_first_ends(
    alice: Session, bob: Session, end: Callable[[LockingSession], None]
) -> None:
    alice.does(takes())
    queued = bob.starts(takes())
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(end)
    queued.result()
    assert alice.does(finds_taken())


def test_a_wait_with_a_limit_ends_with_the_key_as_well(alice: Session, bob: Session) -> None:
    for lock_timeout in (30, 29.5):  # MySQL rounds whole seconds differently
        alice.does(takes())
        queued = bob.starts(takes(lock_timeout=lock_timeout))
        wait_until_blocked(waiter=bob, holder=alice, step=queued)
        alice.does(roll_back)
        queued.result()
        bob.does(roll_back)


def test_a_transaction_that_goes_on_keeps_the_key(alice: Session, bob: Session) -> None:
    alice.does(takes())
    alice.does(lambda session: session.get(Order, 1))
    alice.does(lambda session: session.flush())
    assert bob.does(finds_taken())


def test_what_is_read_under_the_key_is_what_the_last_holder_has_left(
    alice: Session, bob: Session
) -> None:
    def change(session: LockingSession) -> None:
        session.lock_key(KEY)
        session.execute(sa.update(Order).where(Order.id == 1).values(total=99))

    def take_and_read(session: LockingSession) -> int:
        session.lock_key(KEY)
        return read_again(session)[0]

    alice.does(change)
    queued = bob.starts(take_and_read)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == 99


@not_sqlite
def test_other_keys_are_free(alice: Session, bob: Session) -> None:
    alice.does(takes())
    assert not bob.does(finds_taken("user:43"))


@not_sqlite
def test_a_key_is_in_nobodys_way_who_does_not_ask_for_it(alice: Session, bob: Session) -> None:
    alice.does(takes())
    bob.does(lambda session: session.execute(sa.update(Order).values(total=1)))
    bob.does(save)


@pytest.mark.databases(*SHARED)
def test_shared_holders_have_the_key_side_by_side(alice: Session, bob: Session) -> None:
    alice.does(takes(shared=True))
    bob.does(takes(shared=True))
    assert alice.does(lambda session: session.in_transaction())


@pytest.mark.not_databases(*SHARED)
def test_where_there_is_no_shared_lock_it_is_exclusive(alice: Session, bob: Session) -> None:
    alice.does(takes(shared=True))
    assert bob.does(finds_taken(shared=True))


def test_shared_and_exclusive_exclude_each_other(alice: Session, bob: Session) -> None:
    alice.does(takes(shared=True))
    assert bob.does(finds_taken())
    queued = bob.starts(takes())
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(roll_back)
    queued.result()
    assert alice.does(finds_taken(shared=True))


# --------------------------------------------------------------------------------------------------
# Two transactions wait for each other's keys, or for a key and a row.

Run = Callable[..., list[Any]]


@pytest.mark.not_databases("sqlite")
@pytest.mark.read_committed
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
    if alice.database.name != "postgresql":  # it released the loser's lock
        assert not steps[winner].done()
    loser.does(LockingSession.rollback)
    steps[winner].result()
    winner.does(LockingSession.rollback)
    assert elsewhere(NAMES) == [(1, "Ann"), (2, "Ben")]
    loser.does(takes("key:1"))
    loser.does(takes("key:2"))


@pytest.mark.not_databases("sqlite")
@pytest.mark.read_committed
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


@pytest.mark.not_databases("sqlite")
@pytest.mark.read_committed
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
