"""An object in hand, a select, several documents: lock(), locked() and its siblings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import MultipleResultsFound, NoResultFound
from sqlalchemy.orm import make_transient

from sa_doclock import LockingSession, LockMisuse, LockOptions, UnsavedChanges, with_lock
from tests.integration.locking.steps import TEN_MORE, add_ten, finds_held, save, seen
from tests.support.actors import Actor
from tests.support.models import Customer, Order, Voucher
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.read_committed

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
Session = LockingSession
Run = Callable[..., list[Any]]
FIRST_ORDER = sa.select(Order).where(Order.id == 1)
TOTAL = sa.select(Order.total).where(Order.id == 1)


def test_an_object_is_locked_and_fresh(alice: Actor[Session], bob: Actor[Session]) -> None:
    def lock_what_is_loaded(session: Session) -> Any:
        order = session.get_one(Order, 1)
        seen(order)
        session.commit()
        assert session.lock(order) is order
        return seen(order)

    alice.does(add_ten)
    queued = bob.starts(lock_what_is_loaded)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == TEN_MORE


def test_an_object_is_held(session: Session, other: Session) -> None:
    order = session.get_one(Order, 1)
    session.commit()
    session.lock(order, SharedRead)
    assert dict(session.held_locks) == {(Order, (1,)): SharedRead}
    session.rollback()
    session.lock(order)
    assert finds_held()(other)


def test_an_object_that_cannot_be_locked_is_refused(session: Session, other: Session) -> None:
    new = Order(id=9, total=0)
    foreign = other.get_one(Order, 1)
    for instance, why in ((new, "is not in this session"), (foreign, "is not in this session")):
        with pytest.raises(LockMisuse, match=why):
            session.lock(instance)
    session.add(new)
    with pytest.raises(LockMisuse, match="has no row yet"):
        session.lock(new)
    session.expunge(new)
    for nothing in (None, "Order", [foreign], Order):
        with pytest.raises(TypeError):
            session.lock(nothing)
    changed = session.get_one(Order, 1)
    changed.total = 7
    with pytest.raises(UnsavedChanges):
        session.lock(changed)
    with pytest.raises(ValueError, match="needs a lock"):
        session.lock(changed, LockOptions.None_)
    make_transient(changed)
    with pytest.raises(LockMisuse):
        session.lock(changed)


def test_an_object_that_another_has_deleted(session: Session, elsewhere: Run) -> None:
    voucher = session.get_one(Customer, 2)
    session.commit()
    elsewhere(sa.text("DELETE FROM lk_invoice"), sa.text("DELETE FROM lk_customer WHERE id = 2"))
    with pytest.raises(NoResultFound):
        session.lock(voucher)
    assert not session.held_locks


def test_a_block_on_an_object_saves(session: Session, other: Session, elsewhere: Run) -> None:
    order = session.get_one(Order, 1)
    session.commit()
    with session.locked(order) as locked:
        assert locked is order
        assert finds_held()(other)
        order.total = 31
    assert elsewhere(TOTAL) == [(31,)]
    with session.locked_document(order, lock=SharedRead) as read:
        assert "lines" in sa.inspect(read).dict
    assert not session.in_transaction()


def test_a_block_on_a_select_saves(session: Session, other: Session, elsewhere: Run) -> None:
    for statement in (FIRST_ORDER, with_lock(FIRST_ORDER, ForUpdate)):
        with session.locked(statement) as order:
            assert finds_held()(other)
            order.total += 1
        assert not session.in_transaction()
    assert elsewhere(TOTAL) == [(32,)]
    with session.locked_document(FIRST_ORDER) as order:
        assert len(order.lines) == 2


def test_a_select_keeps_the_lock_that_it_has(session: Session) -> None:
    with session.locked(with_lock(FIRST_ORDER, SharedRead)):
        assert set(session.held_locks.values()) == {SharedRead}
    with (
        pytest.raises(ValueError, match="already has a lock"),
        session.locked(with_lock(FIRST_ORDER, ForUpdate), lock_timeout=1),
    ):
        pass


def test_a_select_returns_exactly_one(session: Session, other: Session) -> None:
    for statement, error in (
        (sa.select(Order), MultipleResultsFound),
        (sa.select(Order).where(Order.id == 99), NoResultFound),
    ):
        with pytest.raises(error), session.locked(statement):
            pass
        assert not session.in_transaction()
    assert not finds_held()(other)
    wrong: list[Any] = [sa.select(Order.id), sa.select(Order, Customer)]
    for selected in wrong:
        with (
            pytest.raises(ValueError, match="of exactly one mapped class"),
            session.locked(selected),
        ):
            pass


def test_a_lock_in_the_place_of_the_key_is_reported(session: Session) -> None:
    order: Any = session.get_one(Order, 1)
    with pytest.raises(TypeError, match=r"lock=LockOptions\.SharedRead"):
        session.locked(order, SharedRead).__enter__()
    with pytest.raises(TypeError, match="Order is a class"):
        session.locked(Order).__enter__()


def test_several_documents_come_as_they_are_asked_for(
    session: Session, other: Session, elsewhere: Run
) -> None:
    with session.locked_documents(Order, [2, 1]) as [two, one]:
        assert (two.id, one.id) == (2, 1)
        assert finds_held(Order, 1)(other)
        assert {"lines"} <= sa.inspect(one).dict.keys()
        one.total, two.total = 1, 2
    assert elsewhere(TOTAL) == [(1,)]
    with session.locked_documents(Order, [1, 2, 1]) as [first, _, again]:
        assert first is again
    with session.locked_documents(Voucher, [(2024, 2), (2024, 1)]) as vouchers:
        assert [voucher.number for voucher in vouchers] == [2, 1]


def test_all_documents_must_be_there(session: Session, other: Session) -> None:
    with (
        pytest.raises(NoResultFound, match="there is no Order with the primary key 99"),
        session.locked_documents(Order, [1, 99]),
    ):
        pass
    assert not session.in_transaction()
    assert not finds_held()(other)
    with (
        pytest.raises(ValueError, match="all or none"),
        session.locked_documents(Order, [1], ForUpdate | LockOptions.SkipLocked),
    ):
        pass


@pytest.mark.parametrize("lock", [LockOptions.None_, ForUpdate])
def test_the_given_order(session: Session, lock: LockOptions) -> None:
    found = session.get_entities(Order, (ident for ident in (2, 99, 1, 2)), lock, order="given")
    assert [order.id for order in found] == [2, 1]
    found = session.get_documents(Order, [2, 1], lock, order="given")
    assert [order.id for order in found] == [2, 1]
    wrong: Any = "random"
    with pytest.raises(ValueError, match="order is"):
        session.get_entities(Order, [1], lock, order=wrong)


def test_get_one_document(session: Session) -> None:
    order = session.get_one_document(Order, 1, ForUpdate)
    assert "lines" in sa.inspect(order).dict
    with pytest.raises(NoResultFound, match="there is no Order with the primary key 99"):
        session.get_one_document(Order, 99, ForUpdate)
