"""A savepoint before anything else: its RELEASE must not give the lock up."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.integration.locking.steps import FIRST, finds_held, reads
from tests.support.models import Customer, Order

pytestmark = [pytest.mark.quick, pytest.mark.read_committed]

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
Session = LockingSession
Run = Callable[..., list[Any]]
Begin = Callable[[LockingSession], Any]
TOTALS = sa.select(Order.total).order_by(Order.id)


def test_the_lock_outlives_the_savepoint(session: Session, other: Session, elsewhere: Run) -> None:
    with session.begin():
        with session.begin_nested():
            session.get_one_entity(Order, 1, ForUpdate).total = 31
        assert finds_held()(other)
        assert list(session.held_locks) == [(Order, (1,))]
    assert not finds_held()(other)
    assert elsewhere(TOTALS) == [(31,), (5,)]


def test_without_begin(session: Session, other: Session, elsewhere: Run) -> None:
    with session.begin_nested():
        session.get_one_entity(Order, 1, ForUpdate).total = 31
    assert finds_held()(other)
    session.save_changes()  # SQLAlchemy takes a begin_nested() without begin() for one
    assert not session.in_transaction()
    assert not finds_held()(other)
    assert elsewhere(TOTALS) == [(31,), (5,)]


@pytest.mark.parametrize("begin", [Session.begin_nested, partial(Session.begin, nested=True)])
@pytest.mark.parametrize("undone", [False, True])
def test_a_block_after_it_ends_the_transaction(
    session: Session, other: Session, elsewhere: Run, begin: Begin, *, undone: bool
) -> None:
    with begin(session) as savepoint:
        session.add(Customer(id=9, name="tag"))
        session.flush()
        if undone:
            savepoint.rollback()
    with session.locked(Order, 1) as order:
        order.total = 31
    assert not session.in_transaction()
    assert not finds_held()(other)
    assert elsewhere(TOTALS) == [(31,), (5,)]
    assert elsewhere(sa.select(Customer.name).where(Customer.id == 9)) == [("tag",)][undone:]


def test_release_locks_after_it(session: Session, other: Session) -> None:
    with session.begin_nested():
        session.get_one_entity(Order, 1, ForUpdate)
    session.release_locks()
    assert not session.in_transaction()
    assert not finds_held()(other)


def test_the_next_transaction_is_the_callers(session: Session, other: Session) -> None:
    with session.begin_nested():
        session.get_one(Customer, 1)
    session.rollback()
    with session.begin():
        session.get_one_entity(Order, 1, ForUpdate).total = 31
        session.save_changes()
        assert finds_held()(other)


def test_a_savepoint_in_the_callers_transaction(session: Session, other: Session) -> None:
    with session.begin():
        with session.begin_nested():
            session.get_one(Customer, 1)
        session.get_one_entity(Order, 1, ForUpdate).total = 31
        session.save_changes()
        assert finds_held()(other)


def test_inside_of_it_save_changes_flushes(session: Session, other: Session) -> None:
    with session.begin_nested():
        session.get_one_entity(Order, 1, ForUpdate).total = 31
        session.save_changes()
        assert session.in_nested_transaction()
        assert finds_held()(other)
    session.rollback()


def test_what_was_released_can_be_undone(session: Session, elsewhere: Run) -> None:
    with session.begin_nested():
        session.get_one_entity(Order, 1, ForUpdate).total = 31
    session.rollback()
    assert elsewhere(TOTALS) == [(30,), (5,)]


def test_a_second_savepoint(session: Session, other: Session, elsewhere: Run) -> None:
    with session.begin():
        with session.begin_nested():
            session.get_one_entity(Order, 1, ForUpdate).total = 31
        with session.begin_nested() as savepoint:
            session.get_one_entity(Order, 1, ForUpdate).total = 32
            session.flush()
            savepoint.rollback()
        assert session.get_one_entity(Order, 1, ForUpdate).total == 31
        assert finds_held()(other)
    assert elsewhere(TOTALS) == [(31,), (5,)]


def test_a_savepoint_with_writes_before_the_lock(
    make_session: Callable[..., LockingSession], read_committed: dict[str, Any], elsewhere: Run
) -> None:
    session = make_session(**read_committed)
    with session.begin():
        with session.begin_nested():
            session.get_one(Customer, 1).name = "written"
        session.get_one_entity(Order, 1, ForUpdate).total = 31
        assert elsewhere(sa.select(Customer.name).where(Customer.id == 1)) == [("Ann",)]
    assert elsewhere(TOTALS) == [(31,), (5,)]


def test_a_read_lock(session: Session) -> None:
    for lock in (SharedRead, LockOptions.SnapshotRead):
        with session.begin():
            with session.begin_nested():
                assert reads(lock)(session) == FIRST
            assert dict(session.held_locks) == {(Order, (1,)): lock}
        assert not session.in_transaction()


def test_a_refused_lock_costs_the_savepoint_alone(
    session: Session, other: Session, elsewhere: Run
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    session.begin()
    with pytest.raises(LockNotAvailable), session.begin_nested():
        session.get_one_entity(Order, 1, ForUpdate | LockOptions.NoWait)
    other.rollback()
    with session.begin_nested():
        session.get_one_entity(Order, 1, ForUpdate).total = 31
    session.commit()
    assert elsewhere(TOTALS) == [(31,), (5,)]
