"""``with session.locked(Order, 1) as order`` inside of something that ends it all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import NoResultFound, PendingRollbackError

from sa_doclock import (
    LockingSession,
    LockNotAvailable,
    LockOptions,
    LockUpgradeRefused,
    UnsavedChanges,
)
from tests.integration.locking.steps import finds_held
from tests.support.models import Customer, Order

pytestmark = [pytest.mark.quick, pytest.mark.read_committed]

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
NoWait, SnapshotRead = LockOptions.NoWait, LockOptions.SnapshotRead
READS = [SharedRead, SnapshotRead]
Session = LockingSession
Run = Callable[..., list[Any]]
TOTAL = sa.select(Order.total).where(Order.id == 1)
NAME = sa.select(Customer.name).where(Customer.id == 1)


class UsersOwnError(Exception):
    """The error that the code inside of a block raises."""


def test_no_row_in_a_callers_transaction(session: Session, elsewhere: Run) -> None:
    with session.begin():
        session.get_one(Customer, 1).name = "kept"
        with pytest.raises(NoResultFound), session.locked(Order, 99):
            pytest.fail("there is nothing to be in")
    assert elsewhere(NAME) == [("kept",)]


def test_an_inner_block_leaves_the_transaction_to_the_outer(
    session: Session, other: Session, elsewhere: Run
) -> None:
    with session.locked(Order, 1) as first:
        with session.locked(Order, 2) as second:
            first.total, second.total = 31, 6
        assert session.in_transaction()
        assert finds_held(Order, 2)(other)
        with session.locked(Order, 1) as again:
            assert again is first
    assert elsewhere(sa.select(Order.total).order_by(Order.id)) == [(31,), (6,)]


def test_a_block_after_a_lock_is_an_inner_one(session: Session, other: Session) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    with session.locked(Order, 1) as order:
        order.total = 31
    assert finds_held()(other)
    session.rollback()


def test_begin_is_left_alone(session: Session, other: Session, elsewhere: Run) -> None:
    with session.begin():
        with session.locked(Order, 1) as order:
            order.total = 31
        assert finds_held()(other)
    assert elsewhere(TOTAL) == [(31,)]


def test_an_exception_in_a_callers_transaction_leaves_it_to_the_caller(
    session: Session, elsewhere: Run
) -> None:
    with session.begin():
        session.get_one(Customer, 1).name = "kept"
        with pytest.raises(UsersOwnError), session.locked(Order, 1):
            raise UsersOwnError
    assert elsewhere(NAME) == [("kept",)]


def test_a_savepoint_is_left_alone(session: Session, other: Session, elsewhere: Run) -> None:
    session.get_one(Customer, 1)
    with session.begin_nested():
        with session.locked(Order, 1) as order:
            order.total = 31
        assert session.in_nested_transaction()
    assert finds_held()(other)
    session.save_changes()
    assert elsewhere(TOTAL) == [(31,)]


def test_an_earlier_read_is_no_callers_transaction(session: Session, elsewhere: Run) -> None:
    session.get_one(Customer, 1).name = "saved along"
    with session.locked(Order, 1) as order:
        order.total = 31
    assert not session.in_transaction()
    assert elsewhere(TOTAL) == [(31,)]
    assert elsewhere(NAME) == [("saved along",)]


def test_a_failed_lock_keeps_what_was_pending(session: Session) -> None:
    customer = session.get_one(Customer, 1)
    customer.name = "pending"
    with session.no_autoflush:
        session.get_one(Order, 1).total = 31
        with pytest.raises(UnsavedChanges), session.locked(Order, 1):
            pytest.fail("it was not granted")
    assert customer.name == "pending"
    assert session.in_transaction()


@pytest.mark.not_databases("sqlite")  # one lock for the file
def test_an_inner_lock_that_fails_is_reported_to_the_outer_block(
    session: Session, other: Session, elsewhere: Run
) -> None:
    def fail() -> None:
        with session.locked(Order, 1) as order:
            order.total = 31
            session.flush()
            with pytest.raises(LockNotAvailable), session.locked(Order, 2, ForUpdate | NoWait):
                pytest.fail("it was not granted")

    other.get_one_entity(Order, 2, ForUpdate)
    with pytest.raises(PendingRollbackError):
        fail()
    assert not session.in_transaction()
    assert elsewhere(TOTAL) == [(30,)]


def test_an_upgrade_in_an_inner_block_is_refused(session: Session) -> None:
    with (
        session.locked(Order, 1, SharedRead) as order,
        pytest.raises(LockUpgradeRefused),
        session.locked(Order, 1),
    ):
        pytest.fail("it was not granted")
    assert order.total == 30
