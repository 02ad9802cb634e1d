"""NoKey: others may insert rows that refer to the locked one; all else is as under ForUpdate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockNotAvailable, LockOptions, LockUpgradeRefused
from tests.integration.locking.steps import finds_held, locks, locks_rows, recorded, roll_back
from tests.support.actors import Actor
from tests.support.models import Customer, Invoice
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.quick

Session = Actor[LockingSession]
NO_KEY = LockOptions.ForUpdate | LockOptions.NoKey
SHARED = LockOptions.SharedRead


def add_invoice(session: LockingSession) -> None:
    """Insert an invoice of customer 1, whose foreign key takes a lock on the customer."""
    session.add(Invoice(id=9, total=0, customer_id=1, seller_id=2))
    session.flush()
    session.rollback()


@pytest.mark.databases("postgresql")
def test_others_insert_rows_that_refer_to_it(alice: Session, bob: Session) -> None:
    alice.does(locks(Customer, 1, NO_KEY))
    bob.does(add_invoice)


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_under_plain_for_update_they_wait(alice: Session, bob: Session) -> None:
    alice.does(locks(Customer, 1))
    inserting = bob.starts(add_invoice)
    wait_until_blocked(waiter=bob, holder=alice, step=inserting)
    alice.does(roll_back)
    inserting.result()


@pytest.mark.parametrize(("held", "wanted"), [(NO_KEY, NO_KEY), (NO_KEY, LockOptions.ForUpdate)])
def test_two_holders_exclude_each_other(
    alice: Session, bob: Session, held: LockOptions, wanted: LockOptions
) -> None:
    alice.does(locks(Customer, 1, held))
    queued = bob.starts(locks(Customer, 1, wanted))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(roll_back)
    queued.result()


@pytest.mark.databases("postgresql", "mysql", "mariadb")  # elsewhere readers have a snapshot
@pytest.mark.parametrize(("held", "wanted"), [(NO_KEY, SHARED), (SHARED, NO_KEY)])
def test_it_and_shared_read_exclude_each_other(
    alice: Session, bob: Session, held: LockOptions, wanted: LockOptions
) -> None:
    alice.does(locks(Customer, 1, held))
    queued = bob.starts(locks(Customer, 1, wanted))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(roll_back)
    queued.result()


def test_a_change_under_it_is_saved(
    session: LockingSession, elsewhere: Callable[..., list[Any]]
) -> None:
    session.get_one_entity(Customer, 1, NO_KEY).name = "Anna"
    assert dict(session.held_locks) == {(Customer, (1,)): NO_KEY}
    session.save_changes()
    assert elsewhere(sa.select(Customer.name).where(Customer.id == 1)) == [("Anna",)]


def test_it_becomes_plain_for_update(
    engine: sa.Engine, session: LockingSession, other: LockingSession
) -> None:
    session.get_one_entity(Customer, 1, NO_KEY)
    session.get_one_entity(Customer, 1, LockOptions.ForUpdate)
    assert dict(session.held_locks) == {(Customer, (1,)): LockOptions.ForUpdate}
    assert finds_held(Customer, 1)(other)
    with recorded(engine) as statements:  # the stronger lock gives the weaker one
        session.get_one_entity(Customer, 1, NO_KEY)
    assert not [text for text in statements if locks_rows(text)]
    assert dict(session.held_locks) == {(Customer, (1,)): LockOptions.ForUpdate}


@pytest.mark.databases("postgresql")  # which gives up what was locked in a savepoint
def test_a_savepoint_that_is_rolled_back_leaves_the_weaker_lock(
    session: LockingSession, alice: Session, bob: Session
) -> None:
    def strengthen_in_savepoint(session: LockingSession) -> None:
        session.get_one_entity(Customer, 1, NO_KEY)
        savepoint = session.begin_nested()
        session.get_one_entity(Customer, 1, LockOptions.ForUpdate)
        savepoint.rollback()
        assert dict(session.held_locks) == {(Customer, (1,)): NO_KEY}

    alice.does(strengthen_in_savepoint)
    bob.does(add_invoice)
    assert finds_held(Customer, 1)(session)


def test_a_read_lock_does_not_become_it(session: LockingSession) -> None:
    session.get_one_entity(Customer, 1, SHARED)
    with pytest.raises(LockUpgradeRefused):
        session.get_one_entity(Customer, 1, NO_KEY)


@pytest.mark.parametrize("lock", [NO_KEY, NO_KEY | LockOptions.NoWait])
def test_a_timeout_limits_its_wait(
    session: LockingSession, other: LockingSession, lock: LockOptions
) -> None:
    session.get_one_entity(Customer, 1, LockOptions.ForUpdate)
    seconds = None if LockOptions.NoWait in lock else 0.2
    with pytest.raises(LockNotAvailable):
        other.get_one_entity(Customer, 1, lock, lock_timeout=seconds)
