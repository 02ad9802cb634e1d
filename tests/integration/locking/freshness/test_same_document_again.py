"""A document that is held already: nothing is sent, unless there is something to load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import selectinload, undefer

from sa_doclock import LockingSession, LockOptions, LockUpgradeRefused, WrongIsolation
from tests.integration.locking.expectations import GOES_ON, READER_AFTER_WRITER, WAITS, on
from tests.integration.locking.kinds import KINDS
from tests.integration.locking.steps import finds_held, locks_rows, recorded
from tests.support.models import Account, Contract, Customer, Lease, Order

pytestmark = pytest.mark.quick

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
NoWait, SnapshotRead = LockOptions.NoWait, LockOptions.SnapshotRead
Session = LockingSession

#: First, then: the second is no stronger than the first.
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
    assert order.remark == "first"  # deferred: it loads by itself
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
        assert [line.value for line in order.lines] == [10, 20]  # the transaction goes on
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


@pytest.mark.databases("sqlite")  # where a plain read is outside of any transaction
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
