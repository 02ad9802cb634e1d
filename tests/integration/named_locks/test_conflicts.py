"""Waits for a named lock, their timeouts, and what is read afterwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession
from tests.integration.locking.steps import FIRST, read_again, roll_back, save
from tests.integration.named_locks.keys import KEY, finds_taken, takes
from tests.support.actors import Actor
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
    for lock_timeout in (30, 29.5):  # MySQL counts whole seconds in another way
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
    assert queued.result() == 99 != FIRST[0]


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
