"""``with session.locked(Order, 1) as order``: the block that opened the transaction ends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, NoResultFound

from sa_doclock import (
    LockingSession,
    LockNotAvailable,
    LockOptions,
)
from tests.integration.locking.steps import finds_held, recorded
from tests.support.models import Customer, Line, Order

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


def test_it_saves_and_releases(session: Session, other: Session, elsewhere: Run) -> None:
    with session.locked(Order, 1) as order:
        order.total = 31
        assert finds_held()(other)
    assert not session.in_transaction()
    assert elsewhere(TOTAL) == [(31,)]
    assert not finds_held()(other)


def test_an_exception_comes_out_and_undoes_all(
    session: Session, other: Session, elsewhere: Run
) -> None:
    def fail() -> None:
        with session.locked(Order, 1) as order:
            order.total = 31
            session.flush()
            raise UsersOwnError

    with pytest.raises(UsersOwnError):
        fail()
    assert not session.in_transaction()
    assert elsewhere(TOTAL) == [(30,)]
    assert not finds_held()(other)


def test_a_read_is_released(session: Session, other: Session) -> None:
    for lock in READS:
        with session.locked(Order, 1, lock) as order:
            assert list(session.held_locks.values()) == [lock]
            assert order.id == 1
        assert not session.in_transaction()
        with other.locked(Order, 1) as order:
            order.total += 1


def test_the_exception_of_a_read_comes_out(session: Session) -> None:
    for lock in READS:
        with pytest.raises(UsersOwnError), session.locked(Order, 1, lock):
            raise UsersOwnError
        assert not session.in_transaction()


def test_no_row(session: Session) -> None:
    for lock in (ForUpdate, *READS):
        with pytest.raises(NoResultFound), session.locked(Order, 99, lock):
            pytest.fail("there is nothing to be in")
        assert not session.in_transaction()


def test_a_lock_that_another_holds(session: Session, other: Session) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    with pytest.raises(LockNotAvailable), session.locked(Order, 1, ForUpdate | NoWait):
        pytest.fail("it was not granted")
    assert not session.in_transaction()


def test_a_lock_that_locks_nothing(session: Session) -> None:
    for lock in (LockOptions.None_, LockOptions.NoLock):
        with pytest.raises(ValueError, match="needs a lock"), session.locked(Order, 1, lock):
            pytest.fail("it was not granted")
        assert not session.in_transaction()


def test_a_flush_that_fails_at_the_end(session: Session, other: Session, elsewhere: Run) -> None:
    def fail() -> None:
        with session.locked(Order, 1) as order:
            order.total = 31
            session.add(Line(id=1, order_id=1, name="a second line 1", value=0))

    with pytest.raises(IntegrityError):
        fail()
    assert not session.in_transaction()
    assert not finds_held()(other)
    assert elsewhere(TOTAL) == [(30,)]


def test_options_and_timeout_are_handed_on(engine: sa.Engine, session: Session) -> None:
    loaded = sa.orm.selectinload(Order.lines)
    with session.locked(Order, 1, lock_timeout=5, options=[loaded]) as order:
        with recorded(engine) as statements:
            assert len(order.lines) == 2
        assert statements == []


def test_a_block_that_commits_by_itself(session: Session, elsewhere: Run) -> None:
    with session.locked(Order, 1) as order:
        order.total = 31
        session.commit()
    assert elsewhere(TOTAL) == [(31,)]
    assert not session.in_transaction()
