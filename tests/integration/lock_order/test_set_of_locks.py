"""get_entities and what others hold: it skips, fails at once, or fails after a while."""

from __future__ import annotations

import pytest

from sa_doclock import LockingSession, LockNotAvailable, LockNotSupported, LockOptions
from tests.integration.locking.expectations import READER_AFTER_WRITER, WAITS, on
from tests.integration.locking.steps import finds_held
from tests.support.models import Contract, Lease, Order, Voucher

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
NoWait, SkipLocked = LockOptions.NoWait, LockOptions.SkipLocked
Session = LockingSession


@pytest.mark.not_databases("sqlite")
def test_what_others_hold_is_left_out(session: Session, other: Session) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    found = session.get_entities(Order, [2, 1, 99], ForUpdate | SkipLocked)
    assert [order.id for order in found] == [2]
    assert list(session.held_locks) == [(Order, (2,))]
    other.rollback()
    assert finds_held(Order, 2)(other)
    assert not finds_held(Order, 1)(other)


@pytest.mark.not_databases("sqlite")
def test_what_others_hold_of_other_mappings_is_left_out(session: Session, other: Session) -> None:
    other.get_one_entity(Lease, 1, ForUpdate)
    other.get_one_entity(Voucher, (2024, 1), ForUpdate)
    found = session.get_entities(Contract, [2, 1], ForUpdate | SkipLocked)
    assert [contract.id for contract in found] == [2]
    assert session.get_entities(Lease, [1], ForUpdate | SkipLocked) == []
    keys = [(2024, 1), (2024, 2)]
    assert [one.number for one in session.get_entities(Voucher, keys, ForUpdate | SkipLocked)] == [
        2
    ]
    assert len(session.held_locks) == 2


@pytest.mark.not_databases("sqlite")
def test_an_object_that_was_left_out_stays_in_the_session(session: Session, other: Session) -> None:
    known = session.get_one(Order, 1)
    session.commit()
    other.get_one_entity(Order, 1, ForUpdate)
    assert session.get_entities(Order, [1], ForUpdate | SkipLocked) == []
    assert known in session
    assert known.total == 30


@pytest.mark.not_databases("sqlite")
def test_what_is_held_here_is_not_left_out(session: Session, other: Session) -> None:
    first = session.get_one_entity(Order, 1, ForUpdate)
    other.get_one_entity(Order, 2, ForUpdate)
    assert session.get_entities(Order, [1, 2], ForUpdate | SkipLocked) == [first]


@pytest.mark.databases("sqlite")
def test_sqlite_has_nothing_to_skip(session: Session) -> None:
    with pytest.raises(LockNotSupported, match=r"Order rows .*SQLite locks the file, not rows"):
        session.get_entities(Order, [1, 2], ForUpdate | SkipLocked)
    assert not session.in_transaction()


@pytest.mark.parametrize("how", ["NoWait", "zero", "a while"])
def test_one_that_another_holds_is_reason_enough_to_fail(
    session: Session, other: Session, how: str
) -> None:
    other.get_one_entity(Order, 2, ForUpdate)
    lock = ForUpdate | NoWait if how == "NoWait" else ForUpdate
    seconds = {"NoWait": None, "zero": 0, "a while": 0.3}[how]
    with pytest.raises(LockNotAvailable, match=r"^Order rows FOR UPDATE") as caught:
        session.get_entities(Order, [1, 2], lock, lock_timeout=seconds)
    assert caught.value.entity is Order
    assert caught.value.retryable
    assert not session.in_transaction()  # it had opened the transaction
    assert not session.held_locks
    other.rollback()
    assert not finds_held(Order, 1)(other)
    assert len(session.get_entities(Order, [1, 2], lock, lock_timeout=seconds)) == 2


def test_of_a_single_one_the_error_names_its_key_as_it_was_given(
    session: Session, other: Session
) -> None:
    other.get_one_entity(Order, 2, ForUpdate)
    with pytest.raises(LockNotAvailable, match=r"^Order 2 FOR UPDATE") as caught:
        session.get_entities(Order, [2], ForUpdate | NoWait)
    assert caught.value.ident == 2
    assert caught.value.lock == ForUpdate | NoWait


@on(READER_AFTER_WRITER, WAITS)
def test_readers_are_side_by_side_and_a_writer_is_not(session: Session, other: Session) -> None:
    assert len(session.get_entities(Order, [1, 2], SharedRead | NoWait)) == 2
    assert len(other.get_entities(Order, [2, 1], SharedRead | NoWait)) == 2
    assert set(other.held_locks.values()) == {SharedRead}
    other.rollback()
    with pytest.raises(LockNotAvailable, match=r"^Order rows FOR UPDATE NOWAIT on "):
        other.get_entities(Order, [2, 1], ForUpdate | NoWait)
    session.rollback()
    session.get_one_entity(Order, 2, ForUpdate)
    with pytest.raises(LockNotAvailable, match=r"^Order rows SHARED READ NOWAIT on "):
        other.get_entities(Order, [2, 1], SharedRead | NoWait)
    assert [one.id for one in other.get_entities(Order, [2, 1], SharedRead | SkipLocked)] == [1]
