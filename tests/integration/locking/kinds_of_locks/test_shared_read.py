"""SharedRead: readers side by side, and none of them sees a document in mid-update."""

from __future__ import annotations

import pytest

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.integration.locking.expectations import (
    GOES_ON,
    READER_AFTER_WRITER,
    WAITS,
    WAITS_AT_COMMIT,
    WRITER_AFTER_READER,
    on,
)
from tests.integration.locking.kinds import KINDS
from tests.integration.locking.steps import (
    FIRST,
    TEN_MORE,
    add_ten,
    finds_held,
    locks,
    read_again,
    reads,
    roll_back,
    save,
)
from tests.support.actors import Actor
from tests.support.models import Customer, Order
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.quick

Session = Actor[LockingSession]
SharedRead = LockOptions.SharedRead


def test_readers_run_side_by_side(alice: Session, bob: Session) -> None:
    assert alice.does(reads(SharedRead)) == FIRST
    assert bob.does(reads(SharedRead)) == FIRST
    assert alice.does(read_again) == FIRST


@on(READER_AFTER_WRITER, WAITS)
def test_a_reader_waits_for_a_writer_and_sees_what_it_wrote(alice: Session, bob: Session) -> None:
    alice.does(add_ten)
    queued = bob.starts(reads(SharedRead))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == TEN_MORE


@on(READER_AFTER_WRITER, GOES_ON)
def test_a_reader_beside_a_writer_sees_the_old_state(alice: Session, bob: Session) -> None:
    alice.does(add_ten)
    assert bob.does(reads(SharedRead)) == FIRST
    bob.does(roll_back)
    alice.does(save)
    assert bob.does(reads(SharedRead)) == TEN_MORE


@on(WRITER_AFTER_READER, WAITS)
def test_a_writer_waits_for_a_reader(alice: Session, bob: Session) -> None:
    assert alice.does(reads(SharedRead)) == FIRST
    queued = bob.starts(add_ten)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    assert alice.does(read_again) == FIRST
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
    assert alice.does(lambda _: (order.total, [line.value for line in order.lines])) == FIRST
    alice.does(roll_back)
    queued.result()


@on(WRITER_AFTER_READER, GOES_ON)
def test_a_reader_goes_on_seeing_the_old_state_when_a_writer_commits(
    alice: Session, bob: Session
) -> None:
    order = alice.does(locks(Order, 1, SharedRead))
    bob.does(add_ten)
    bob.does(save)
    assert alice.does(lambda _: (order.total, [line.value for line in order.lines])) == FIRST
    assert alice.does(read_again) == FIRST


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
    """Two orders of one customer, side by side; the customer stays as it is."""
    for number, one in enumerate((session, other), start=1):
        one.get_one_entity(Order, number, LockOptions.ForUpdate).total += 1
        one.get_one_entity(Customer, 1, SharedRead | LockOptions.NoWait)
        assert one.held_locks[Customer, (1,)] is SharedRead
    other.save_changes()
    with pytest.raises(LockNotAvailable):
        other.get_one_entity(Customer, 1, LockOptions.ForUpdate | LockOptions.NoWait)
    session.save_changes()
    other.get_one_entity(Customer, 1, LockOptions.ForUpdate | LockOptions.NoWait)
