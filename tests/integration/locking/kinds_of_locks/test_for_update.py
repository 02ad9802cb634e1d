"""The kinds of row locks, and which of them wait for each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockNotAvailable, LockOptions, LockUpgradeRefused
from tests.integration.locking.expectations import (
    GOES_ON,
    KINDS,
    READER_AFTER_WRITER,
    WAITS,
    WAITS_AT_COMMIT,
    WRITER_AFTER_READER,
    on,
)
from tests.integration.locking.steps import (
    add_ten,
    finds_held,
    locks,
    locks_rows,
    read_again,
    reads,
    recorded,
    roll_back,
    save,
)
from tests.support.actors import Actor
from tests.support.models import Contract, Customer, Invoice, Lease, Order
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.quick

SHARED = LockOptions.SharedRead


# --------------------------------------------------------------------------------------------------
# ForUpdate: one holder at a time.

Session = Actor[LockingSession]


def test_the_second_waits_and_sees_what_the_first_wrote(alice: Session, bob: Session) -> None:
    alice.does(add_ten)
    queued = bob.starts(reads())
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == (40, [20, 20])


def test_the_second_sees_the_old_state_when_the_first_gives_up(
    alice: Session, bob: Session
) -> None:
    alice.does(add_ten)
    queued = bob.starts(reads())
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(roll_back)
    assert queued.result() == (30, [10, 20])


def test_nothing_is_lost_of_what_two_add(
    alice: Session, bob: Session, elsewhere: Callable[..., list[Any]]
) -> None:
    alice.does(add_ten)
    queued = bob.starts(add_ten)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    queued.result()
    bob.does(save)
    assert elsewhere(sa.select(Order.total).where(Order.id == 1)) == [(50,)]


def test_every_kind_of_mapping_is_locked(session: LockingSession, other: LockingSession) -> None:
    for kind in KINDS:
        document = session.get_one_entity(kind.entity, kind.ident, LockOptions.ForUpdate)
        assert document.total == 30, kind
        assert finds_held(kind.entity, kind.ident)(other), kind
        session.rollback()


@pytest.mark.not_databases("sqlite")  # it locks the file
def test_another_document_is_not_locked(session: LockingSession, other: LockingSession) -> None:
    for kind in KINDS:
        session.get_one_entity(kind.entity, kind.ident, LockOptions.ForUpdate)
        assert not finds_held(kind.other, kind.other_ident)(other), kind


def test_the_base_of_joined_inheritance_is_the_same_document(
    session: LockingSession, other: LockingSession
) -> None:
    session.get_one_entity(Lease, 1, LockOptions.ForUpdate)
    assert finds_held(Contract, 1)(other)


@pytest.mark.not_databases("sqlite")
def test_an_object_that_is_loaded_along_is_not_locked(
    session: LockingSession, other: LockingSession
) -> None:
    invoice = session.get_one_entity(Invoice, 1, LockOptions.ForUpdate)
    assert not finds_held(Customer, invoice.customer_id)(other)


def test_a_row_that_is_not_there_locks_nothing(
    session: LockingSession, other: LockingSession
) -> None:
    assert session.get_entity(Order, 99, LockOptions.ForUpdate) is None
    assert not session.held_locks
    session.rollback()
    assert not finds_held(Order, 1)(other)


@pytest.mark.not_databases("mssql")  # there a plain read waits for writers
def test_a_plain_read_is_not_kept_out(session: LockingSession, other: LockingSession) -> None:
    add_ten(session)
    assert reads(LockOptions.None_)(other) == (30, [10, 20])
    assert reads(LockOptions.NoLock)(other) == (30, [10, 20])


@pytest.mark.databases("mssql")
def test_there_a_dirty_read_is_not_kept_out_and_sees_what_is_not_committed(
    session: LockingSession, other: LockingSession
) -> None:
    add_ten(session)
    assert other.get_one_entity(Order, 1, LockOptions.NoLock).total == 40


# --------------------------------------------------------------------------------------------------
# NoKey: others may insert rows that refer to the locked row; otherwise it works like ForUpdate.

NO_KEY = LockOptions.ForUpdate | LockOptions.NoKey


def add_invoice(session: LockingSession) -> None:
    """Insert an invoice of customer 1, whose foreign key locks the customer."""
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
    with recorded(engine) as statements:  # the stronger lock includes the weaker one
        session.get_one_entity(Customer, 1, NO_KEY)
    assert not [text for text in statements if locks_rows(text)]
    assert dict(session.held_locks) == {(Customer, (1,)): LockOptions.ForUpdate}


@pytest.mark.databases("postgresql")  # it releases the locks of a savepoint
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


# --------------------------------------------------------------------------------------------------
# SharedRead: readers share the lock, and none of them sees a half-updated document.

SharedRead = LockOptions.SharedRead


def test_readers_run_side_by_side(alice: Session, bob: Session) -> None:
    assert alice.does(reads(SharedRead)) == (30, [10, 20])
    assert bob.does(reads(SharedRead)) == (30, [10, 20])
    assert alice.does(read_again) == (30, [10, 20])


@on(READER_AFTER_WRITER, WAITS)
def test_a_reader_waits_for_a_writer_and_sees_what_it_wrote(alice: Session, bob: Session) -> None:
    alice.does(add_ten)
    queued = bob.starts(reads(SharedRead))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == (40, [20, 20])


@on(READER_AFTER_WRITER, GOES_ON)
def test_a_reader_beside_a_writer_sees_the_old_state(alice: Session, bob: Session) -> None:
    alice.does(add_ten)
    assert bob.does(reads(SharedRead)) == (30, [10, 20])
    bob.does(roll_back)
    alice.does(save)
    assert bob.does(reads(SharedRead)) == (40, [20, 20])


@on(WRITER_AFTER_READER, WAITS)
def test_a_writer_waits_for_a_reader(alice: Session, bob: Session) -> None:
    assert alice.does(reads(SharedRead)) == (30, [10, 20])
    queued = bob.starts(add_ten)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    assert alice.does(read_again) == (30, [10, 20])
    alice.does(roll_back)
    queued.result()


@on(WRITER_AFTER_READER, WAITS)
def test_a_writer_waits_for_the_last_of_two_readers(
    alice: Session, bob: Session, carol: Session
) -> None:
    alice.does(locks(Order, 1, SharedRead))
    carol.does(locks(Order, 1, SharedRead))
    queued = bob.starts(add_ten)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(roll_back)
    wait_until_blocked(waiter=bob, holder=carol, step=queued)
    carol.does(roll_back)
    queued.result()


@on(WRITER_AFTER_READER, WAITS_AT_COMMIT)
def test_a_writer_waits_for_a_reader_before_it_commits(alice: Session, bob: Session) -> None:
    order = alice.does(locks(Order, 1, SharedRead))
    bob.does(add_ten)
    queued = bob.starts(save)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    assert alice.does(lambda _: (order.total, [line.value for line in order.lines])) == (
        30,
        [10, 20],
    )
    alice.does(roll_back)
    queued.result()


@on(WRITER_AFTER_READER, GOES_ON)
def test_a_reader_goes_on_seeing_the_old_state_when_a_writer_commits(
    alice: Session, bob: Session
) -> None:
    order = alice.does(locks(Order, 1, SharedRead))
    bob.does(add_ten)
    bob.does(save)
    assert alice.does(lambda _: (order.total, [line.value for line in order.lines])) == (
        30,
        [10, 20],
    )
    assert alice.does(read_again) == (30, [10, 20])


@on(WRITER_AFTER_READER, WAITS)
def test_every_kind_of_mapping_keeps_writers_out(
    session: LockingSession, other: LockingSession
) -> None:
    for kind in KINDS:
        assert session.get_one_entity(kind.entity, kind.ident, SharedRead).total == 30, kind
        assert not finds_held(kind.entity, kind.ident, SharedRead)(other), kind
        assert finds_held(kind.entity, kind.ident)(other), kind


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_a_related_row_is_shared_under_the_lock_of_the_header(
    session: LockingSession, other: LockingSession
) -> None:
    """Two orders of one customer, side by side; the customer does not change."""
    for number, one in enumerate((session, other), start=1):
        one.get_one_entity(Order, number, LockOptions.ForUpdate).total += 1
        one.get_one_entity(Customer, 1, SharedRead | LockOptions.NoWait)
        assert one.held_locks[Customer, (1,)] is SharedRead
    other.save_changes()
    with pytest.raises(LockNotAvailable):
        other.get_one_entity(Customer, 1, LockOptions.ForUpdate | LockOptions.NoWait)
    session.save_changes()
    other.get_one_entity(Customer, 1, LockOptions.ForUpdate | LockOptions.NoWait)
