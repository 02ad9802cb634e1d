"""A document that is already held: no statement is sent, unless a part must be loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import MultipleResultsFound, NoResultFound
from sqlalchemy.orm import make_transient, selectinload, undefer

from sa_doclock import (
    LockingSession,
    LockMisuse,
    LockOptions,
    LockUpgradeRefused,
    UnsavedChanges,
    WrongIsolation,
    with_lock,
)
from tests.integration.locking.expectations import GOES_ON, KINDS, READER_AFTER_WRITER, WAITS, on
from tests.integration.locking.steps import (
    add_ten,
    finds_held,
    locks_rows,
    recorded,
    save,
    seen,
)
from tests.support.actors import Actor
from tests.support.models import Account, Contract, Customer, Lease, Order, Voucher
from tests.support.waits import wait_until_blocked

pytestmark = [pytest.mark.quick, pytest.mark.own_logic]

ForUpdate, SharedRead, NoWait, SnapshotRead = (
    LockOptions.ForUpdate,
    LockOptions.SharedRead,
    LockOptions.NoWait,
    LockOptions.SnapshotRead,
)
Session = LockingSession

#: The first lock and the second, which is not stronger.
COVERED = [
    (ForUpdate, ForUpdate),
    (ForUpdate, ForUpdate | NoWait),
    (ForUpdate, SharedRead),
    (ForUpdate | NoWait, ForUpdate),
    (SharedRead, SharedRead),
    (SharedRead, SharedRead | NoWait),
    (SnapshotRead, SnapshotRead),
]


def test_nothing_is_sent(engine: sa.Engine, session: Session) -> None:
    for first, then in COVERED:
        order = session.get_one_entity(Order, 1, first)
        held = dict(session.held_locks)
        with recorded(engine) as statements:
            assert session.get_one_entity(Order, 1, then) is order
        assert statements == [], (first, then)
        assert dict(session.held_locks) == held, (first, then)
        session.rollback()


def test_nothing_is_sent_for_any_kind_of_mapping(engine: sa.Engine, session: Session) -> None:
    for kind in KINDS:
        document = session.get_one_entity(kind.entity, kind.ident, ForUpdate)
        with recorded(engine) as statements:
            assert session.get_one_entity(kind.entity, kind.ident, ForUpdate) is document
            assert document.total == 30
        assert statements == [], kind


def test_it_keeps_its_pending_changes(session: Session) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate)
    order.total, order.lines[0].value = 31, 11
    assert session.get_one_entity(Order, 1, ForUpdate) is order
    assert (order.total, order.lines[0].value) == (31, 11)


def test_the_base_class_is_the_same_document(engine: sa.Engine, session: Session) -> None:
    lease = session.get_one_entity(Lease, 1, ForUpdate)
    with recorded(engine) as statements:
        assert session.get_one_entity(Contract, 1, ForUpdate) is lease
    assert statements == []


def test_a_row_of_a_set_is_held(engine: sa.Engine, session: Session) -> None:
    first, _ = session.scalars(session.entity_set(Order, ForUpdate).order_by(Order.id))
    with recorded(engine) as statements:
        assert session.get_one_entity(Order, 1, ForUpdate) is first
    assert statements == []


def test_options_are_honoured(engine: sa.Engine, session: Session) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate)
    options = [selectinload(Order.lines), undefer(Order.remark)]
    with recorded(engine) as statements:
        assert session.get_one_entity(Order, 1, ForUpdate, options=options) is order
    assert [text for text in statements if "lk_line" in text]
    assert not list(filter(locks_rows, statements))
    with recorded(engine) as statements:
        assert len(order.lines) == 2
        assert order.remark == "first"
    assert statements == []


def test_options_are_honoured_by_the_lock_itself(engine: sa.Engine, session: Session) -> None:
    options = [selectinload(Order.lines), undefer(Order.remark)]
    order = session.get_one_entity(Order, 1, ForUpdate, options=options)
    with recorded(engine) as statements:
        assert len(order.lines) == 2
        assert order.remark == "first"
    assert statements == []


def test_options_overwrite_no_pending_changes(session: Session) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate)
    order.total, order.lines[0].value = 31, 11
    options = [selectinload(Order.lines)]
    session.get_one_entity(Order, 1, ForUpdate, options=options)
    assert (order.total, order.lines[0].value) == (31, 11)


def expire(session: Session, order: Order) -> None:
    session.expire(order)


def expire_total(session: Session, order: Order) -> None:
    session.expire(order, ["total"])


def expire_all(session: Session, _: Order) -> None:
    session.expire_all()


def roll_back_to_savepoint(session: Session, order: Order) -> None:
    savepoint = session.begin_nested()
    order.total = 31
    session.flush()
    savepoint.rollback()


@pytest.mark.parametrize("expire", [expire, expire_total, expire_all, roll_back_to_savepoint])
def test_what_has_expired_comes_back_loaded(
    engine: sa.Engine, session: Session, expire: Callable[[Session, Order], None]
) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate)
    assert order.remark == "first"  # deferred: loads by itself
    expire(session, order)
    with recorded(engine) as statements:
        assert session.get_one_entity(Order, 1, ForUpdate) is order
    assert len(statements) == 1
    assert not locks_rows(statements[0])
    with recorded(engine) as statements:
        assert order.total == 30
        assert session.get_one_entity(Order, 1, ForUpdate) is order
    assert statements == []


def test_several_that_have_expired_come_back_by_one_statement(
    engine: sa.Engine, session: Session
) -> None:
    orders = session.get_entities(Order, [1, 2], ForUpdate)
    session.expire_all()
    with recorded(engine) as statements:
        assert session.get_entities(Order, [1, 2], ForUpdate) == orders
        assert [order.total for order in orders] == [30, 5]
    assert len(statements) == 1


def test_what_has_expired_is_read_and_pending_changes_stay(session: Session) -> None:
    account = session.get_one_entity(Account, 1, ForUpdate)
    session.expire(account, ["version"])
    account.total = 31
    session.get_one_entity(Account, 1, ForUpdate)
    assert account.total == 31
    assert account in session.dirty
    session.save_changes()
    assert account.version == 2


def test_a_document_deleted_here_is_gone(session: Session) -> None:
    session.delete(session.get_one_entity(Order, 1, ForUpdate))
    session.flush()
    assert session.get_entity(Order, 1, ForUpdate) is None


def test_the_next_transaction_locks_anew(session: Session, other: Session) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    session.save_changes()
    session.get_one_entity(Order, 1, ForUpdate)
    assert finds_held()(other)


def test_an_upgrade_is_refused_before_anything_is_sent(engine: sa.Engine, session: Session) -> None:
    for first in (SharedRead, SnapshotRead):
        order = session.get_one_entity(Order, 1, first)
        with recorded(engine) as statements:
            for lock in (ForUpdate, ForUpdate | NoWait):
                with pytest.raises(LockUpgradeRefused, match=r"Order 1 FOR UPDATE.* holds it by S"):
                    session.get_entity(Order, 1, lock)
        assert statements == []
        assert [line.value for line in order.lines] == [10, 20]  # the transaction continues
        session.rollback()


@on(READER_AFTER_WRITER, WAITS)
def test_an_upgrade_by_a_set_is_refused(session: Session) -> None:
    session.get_one_entity(Order, 1, SharedRead)
    with pytest.raises(LockUpgradeRefused):
        session.scalars(session.entity_set(Order, ForUpdate))


def test_the_next_transaction_may_take_the_stronger_lock(session: Session) -> None:
    session.get_one_entity(Order, 1, SharedRead)
    session.release_locks()
    session.get_one_entity(Order, 1, ForUpdate).total = 31
    session.save_changes()


@on(READER_AFTER_WRITER, WAITS)
def test_another_document_may_be_locked_after_a_read(session: Session, other: Session) -> None:
    session.get_one_entity(Order, 1, SharedRead)
    session.get_one_entity(Order, 2, ForUpdate).total = 6
    assert dict(session.held_locks) == {(Order, (1,)): SharedRead, (Order, (2,)): ForUpdate}
    assert finds_held(Order, 2)(other)
    session.save_changes()


@on(READER_AFTER_WRITER, GOES_ON)
def test_another_document_may_not_be_locked_after_a_snapshot(session: Session) -> None:
    session.get_one_entity(Order, 1, SharedRead)
    with pytest.raises(WrongIsolation, match="Order 2 FOR UPDATE"):
        session.get_entity(Order, 2, ForUpdate)
    assert dict(session.held_locks) == {(Order, (1,)): SharedRead}


@pytest.mark.databases("sqlite")  # there a plain read is outside any transaction
def test_a_plain_read_before_a_snapshot_makes_no_difference(session: Session) -> None:
    known = session.get_one(Customer, 1)
    session.get_one_entity(Order, 1, SharedRead)
    with pytest.raises(WrongIsolation, match="Order 2 FOR UPDATE"):
        session.get_entity(Order, 2, ForUpdate)
    assert known in session


def test_another_document_may_be_read_after_a_lock(
    session: Session, elsewhere: Callable[..., list[Any]]
) -> None:
    session.get_one_entity(Order, 1, ForUpdate).total = 31
    assert session.get_one_entity(Order, 2, SharedRead).total == 5
    session.save_changes()
    assert elsewhere(sa.select(Order.total).where(Order.id == 1)) == [(31,)]


# --------------------------------------------------------------------------------------------------
# lock(), locked() and related methods on an object, a select, and several documents.

Run = Callable[..., list[Any]]
FIRST_ORDER = sa.select(Order).where(Order.id == 1)
TOTAL = sa.select(Order.total).where(Order.id == 1)


@pytest.mark.read_committed
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
    assert queued.result() == (40, [20, 20])


@pytest.mark.read_committed
def test_an_object_is_held(session: Session, other: Session) -> None:
    order = session.get_one(Order, 1)
    session.commit()
    session.lock(order, SharedRead)
    assert dict(session.held_locks) == {(Order, (1,)): SharedRead}
    session.rollback()
    session.lock(order)
    assert finds_held()(other)


@pytest.mark.read_committed
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


@pytest.mark.read_committed
def test_an_object_that_another_has_deleted(session: Session, elsewhere: Run) -> None:
    voucher = session.get_one(Customer, 2)
    session.commit()
    elsewhere(sa.text("DELETE FROM lk_invoice"), sa.text("DELETE FROM lk_customer WHERE id = 2"))
    with pytest.raises(NoResultFound):
        session.lock(voucher)
    assert not session.held_locks


@pytest.mark.read_committed
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


@pytest.mark.read_committed
def test_a_block_on_a_select_saves(session: Session, other: Session, elsewhere: Run) -> None:
    for statement in (FIRST_ORDER, with_lock(FIRST_ORDER, ForUpdate)):
        with session.locked(statement) as order:
            assert finds_held()(other)
            order.total += 1
        assert not session.in_transaction()
    assert elsewhere(TOTAL) == [(32,)]
    with session.locked_document(FIRST_ORDER) as order:
        assert len(order.lines) == 2


@pytest.mark.read_committed
def test_a_select_keeps_the_lock_that_it_has(session: Session) -> None:
    with session.locked(with_lock(FIRST_ORDER, SharedRead)):
        assert set(session.held_locks.values()) == {SharedRead}
    with (
        pytest.raises(ValueError, match="already has a lock"),
        session.locked(with_lock(FIRST_ORDER, ForUpdate), lock_timeout=1),
    ):
        pass


@pytest.mark.read_committed
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


@pytest.mark.read_committed
def test_a_lock_in_the_place_of_the_key_is_reported(session: Session) -> None:
    order: Any = session.get_one(Order, 1)
    with pytest.raises(TypeError, match=r"lock=LockOptions\.SharedRead"):
        session.locked(order, SharedRead).__enter__()
    with pytest.raises(TypeError, match="Order is a class"):
        session.locked(Order).__enter__()


@pytest.mark.read_committed
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


@pytest.mark.read_committed
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


@pytest.mark.read_committed
@pytest.mark.parametrize("lock", [LockOptions.None_, ForUpdate])
def test_the_given_order(session: Session, lock: LockOptions) -> None:
    found = session.get_entities(Order, (ident for ident in (2, 99, 1, 2)), lock, order="given")
    assert [order.id for order in found] == [2, 1]
    found = session.get_documents(Order, [2, 1], lock, order="given")
    assert [order.id for order in found] == [2, 1]
    wrong: Any = "random"
    with pytest.raises(ValueError, match="order is"):
        session.get_entities(Order, [1], lock, order=wrong)


@pytest.mark.read_committed
def test_get_one_document(session: Session) -> None:
    order = session.get_one_document(Order, 1, ForUpdate)
    assert "lines" in sa.inspect(order).dict
    with pytest.raises(NoResultFound, match="there is no Order with the primary key 99"):
        session.get_one_document(Order, 99, ForUpdate)
