"""A savepoint before anything else: its RELEASE must not give the lock up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions
from tests.integration.locking.steps import FIRST, finds_held, reads
from tests.support.models import Customer, Order

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
Session = LockingSession
Run = Callable[..., list[Any]]
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
    session.save_changes()  # SQLAlchemy takes a begin_nested() without begin() for one
    assert finds_held()(other)
    session.commit()
    assert not finds_held()(other)
    assert elsewhere(TOTALS) == [(31,), (5,)]


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
