"""A header that this transaction has inserted needs no lock: nobody else can see it."""

from __future__ import annotations

import pytest

from sa_doclock import LockingSession
from tests.integration.guard.models import (
    Customer,
    Lease,
    Line,
    Memo,
    Note,
    Order,
    Seal,
    Tag,
    Tax,
    Terms,
)
from tests.integration.guard.steps import hold, refused

pytestmark = pytest.mark.quick


def new_order() -> Order:
    return Order(id=9, total=5, lines=[Line(id=9, value=5, taxes=[Tax(id=9)])])


def test_a_new_document_is_inserted_with_its_parts(session: LockingSession) -> None:
    session.add(new_order())
    session.commit()


def test_so_it_is_when_only_the_foreign_keys_say_what_belongs_together(
    session: LockingSession,
) -> None:
    session.add_all([Tax(id=9, line_id=9), Line(id=9, order_id=9), Order(id=9)])
    session.commit()


def test_a_new_part_beside_a_new_header_is_not_that_headers(session: LockingSession) -> None:
    session.add_all([Order(id=9), Line(id=9, order_id=1)])
    with refused(session, Order, 1, "Line"):
        session.flush()


def test_it_may_be_changed_after_its_flush(session: LockingSession) -> None:
    session.add(order := new_order())
    session.flush()
    order.total = 6
    order.lines[0].value = 6
    order.lines[0].taxes[0].rate = 7
    order.lines.append(Line(id=10))
    session.flush()
    order.lines.pop(0)
    session.flush()
    session.delete(order)
    session.commit()


def test_so_it_is_when_it_was_read_again(session: LockingSession) -> None:
    session.add(new_order())
    session.flush()
    session.expunge_all()
    line = session.get_one(Line, 9)
    line.value = 6
    session.commit()


def test_a_new_document_may_have_the_key_that_the_database_gives(session: LockingSession) -> None:
    session.add(memo := Memo(notes=[Note()]))
    session.flush()
    memo.total = 1
    memo.notes.append(Note())
    session.add(Note(memo_id=memo.id))
    session.flush()
    ident = memo.id
    session.commit()
    memo.total = 2
    with refused(session, Memo, ident, "'total'"):
        session.flush()


def test_a_subclass_with_parts_that_come_one_at_a_time(session: LockingSession) -> None:
    lease = Lease(id=9, terms=Terms(id=9, text="new"), seal=Seal(id=9, text="blue"))
    session.add(lease)
    session.flush()
    assert lease.terms is not None
    assert lease.seal is not None
    lease.rent, lease.terms.text, lease.seal.text = 1, "old", "green"
    session.commit()


@pytest.mark.parametrize("part", [False, True])
def test_after_the_commit_it_needs_the_lock(session: LockingSession, part: bool) -> None:
    session.add(order := new_order())
    session.commit()
    if part:
        order.lines[0].value = 6
    else:
        order.total = 6
    with refused(session, Order, 9):
        session.flush()


def test_an_insert_rolled_back_with_its_savepoint_leaves_nothing(session: LockingSession) -> None:
    with session.begin_nested() as savepoint:
        session.add(new_order())
        session.flush()
        savepoint.rollback()
    session.add(Line(id=10, order_id=9))
    with refused(session, Order, 9):
        session.flush()


def test_an_insert_before_a_savepoint_outlives_its_rollback(session: LockingSession) -> None:
    session.add(order := new_order())
    session.flush()
    with session.begin_nested() as savepoint:
        order.total = 6
        session.flush()
        savepoint.rollback()
    order.total = 7
    session.commit()


def test_an_insert_in_a_released_savepoint_is_this_transactions(session: LockingSession) -> None:
    with session.begin_nested():
        session.add(order := new_order())
    order.total = 6
    session.commit()


def test_an_insert_in_a_rolled_back_transaction_leaves_nothing(session: LockingSession) -> None:
    session.add(new_order())
    session.flush()
    session.rollback()
    session.add(Line(id=10, order_id=9))
    with refused(session, Order, 9):
        session.flush()


def test_a_new_document_takes_no_part_of_another(session: LockingSession) -> None:
    line = session.get_one(Line, 1)
    session.add(order := Order(id=9, lines=[line]))
    with refused(session, Order, 1, "Line 1"):
        session.flush()
    assert order in session.new


def test_unless_the_other_is_held(session: LockingSession) -> None:
    held = hold(session, Order, 1)
    line = session.get_one(Line, 1)
    session.add(Order(id=9, lines=[line]))
    session.commit()
    assert line.order_id == 9
    assert held


def test_a_new_document_may_have_the_tags_of_others(session: LockingSession) -> None:
    session.add(Order(id=9, tags=[tag := session.get_one(Tag, 1)]))
    session.commit()
    assert [order.id for order in tag.orders] == [1, 2, 9]


def test_what_is_not_declared_may_have_a_new_document(session: LockingSession) -> None:
    customer = session.get_one(Customer, 2)
    customer.orders.append(new_order())
    session.commit()
