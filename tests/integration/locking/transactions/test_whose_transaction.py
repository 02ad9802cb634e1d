"""The one who opened the transaction ends it: save_changes() and release_locks()."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockMisuse, LockOptions
from tests.integration.locking.steps import finds_held, recorded
from tests.support.models import Customer, Line, Order

pytestmark = [pytest.mark.quick, pytest.mark.read_committed]

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
Session = LockingSession
Run = Callable[..., list[Any]]
TOTAL = sa.select(Order.total).where(Order.id == 1)


def change(session: Session) -> Order:
    """Lock order 1 and change it; not flushed yet."""
    order = session.get_one_entity(Order, 1, ForUpdate)
    order.total = 31
    return order


def test_the_lock_has_opened_it(session: Session, other: Session, elsewhere: Run) -> None:
    change(session)
    session.save_changes()
    assert not session.in_transaction()
    assert not finds_held()(other)
    assert elsewhere(TOTAL) == [(31,)]


def test_an_earlier_read_has_opened_it(session: Session, other: Session, elsewhere: Run) -> None:
    session.get_one(Customer, 1)
    change(session)
    session.save_changes()
    assert not session.in_transaction()
    assert not finds_held()(other)
    assert elsewhere(TOTAL) == [(31,)]


def test_begin_has_opened_it(session: Session, other: Session, elsewhere: Run) -> None:
    with session.begin():
        order = change(session)
        session.save_changes()
        assert not session.is_modified(order)  # flushed
        assert finds_held()(other)
        assert list(session.held_locks) == [(Order, (1,))]
    assert not finds_held()(other)
    assert elsewhere(TOTAL) == [(31,)]


def test_a_begin_that_ends_badly_undoes_it(session: Session, elsewhere: Run) -> None:
    def fail() -> None:
        with session.begin():
            change(session)
            session.save_changes()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert elsewhere(TOTAL) == [(30,)]


def test_a_savepoint_is_open(session: Session, other: Session, elsewhere: Run) -> None:
    order = change(session)
    with session.begin_nested():
        order.total = 32
        session.save_changes()
        assert finds_held()(other)
    assert session.in_transaction()
    assert finds_held()(other)
    session.save_changes()
    assert elsewhere(TOTAL) == [(32,)]


def test_a_factory_that_begins(session_factory: Any, other: Session, elsewhere: Run) -> None:
    with session_factory.begin() as session:
        change(session)
        session.save_changes()
        assert finds_held()(other)
    assert elsewhere(TOTAL) == [(31,)]


def test_save_changes_without_a_lock(session: Session, elsewhere: Run) -> None:
    session.add(Customer(id=9, name="new"))
    session.save_changes()
    assert not session.in_transaction()
    assert elsewhere(sa.select(Customer.name).where(Customer.id == 9)) == [("new",)]


def test_without_a_transaction_nothing_is_sent(engine: sa.Engine, session: Session) -> None:
    with recorded(engine) as statements:
        session.release_locks()
        session.save_changes()
    assert statements == []
    assert not session.in_transaction()


def test_release_locks_ends_what_a_lock_has_opened(session: Session, other: Session) -> None:
    for lock in (ForUpdate, SharedRead, LockOptions.SnapshotRead):
        session.get_one_entity(Order, 1, lock)
        session.release_locks()
        assert not session.in_transaction()
        assert not session.held_locks
        assert not finds_held()(other)


def test_release_locks_drops_what_was_changed(session: Session, elsewhere: Run) -> None:
    order = change(session)
    order.lines.append(Line(id=9, name="x", value=1))
    session.flush()
    order.total = 32
    session.release_locks()
    assert (order.total, len(order.lines)) == (30, 2)
    assert elsewhere(TOTAL) == [(30,)]


def test_release_locks_leaves_the_callers_transaction_alone(
    session: Session, other: Session, elsewhere: Run
) -> None:
    with session.begin():
        change(session)
        with pytest.raises(LockMisuse, match=r"begin\(\)"):
            session.release_locks()
        assert finds_held()(other)
    assert elsewhere(TOTAL) == [(31,)]


def test_release_locks_leaves_a_savepoint_alone(
    session: Session, other: Session, elsewhere: Run
) -> None:
    change(session)
    with session.begin_nested(), pytest.raises(LockMisuse, match="leave that block"):
        session.release_locks()
    assert finds_held()(other)
    session.save_changes()
    assert elsewhere(TOTAL) == [(31,)]
