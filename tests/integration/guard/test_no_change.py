"""A write that changes nothing of a document needs no lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import attributes

from sa_doclock import LockingSession
from tests.integration.guard.models import Comment, Customer, Line, Order, Tag, Tax
from tests.integration.guard.steps import refused, writes_sent

pytestmark = pytest.mark.quick

CUSTOMERS: Any = Customer.__table__
Action = Callable[[LockingSession], object]


def set_to_itself(session: LockingSession) -> object:
    order, line = session.get_one(Order, 1), session.get_one(Line, 1)
    order.total = order.total
    line.value = 10
    line.order = order
    line.order_id = 1
    return order, line


def change_and_change_back(session: LockingSession) -> object:
    line = session.get_one(Line, 1)
    line.value = 11
    line.value = 10
    return line


def same_collection(session: LockingSession) -> object:
    order = session.get_one(Order, 1)
    order.lines = list(order.lines)
    order.tags = list(order.tags)
    return order


def remove_and_append_again(session: LockingSession) -> object:
    order = session.get_one(Order, 1)
    order.lines.append(order.lines.pop())
    return order


def read(session: LockingSession) -> object:
    orders = session.scalars(sa.select(Order)).all()
    return [(o, o.total, [(line, list(line.taxes)) for line in o.lines], o.tags) for o in orders]


def expire_and_refresh(session: LockingSession) -> object:
    order = session.get_one(Order, 1)
    session.expire(order)
    session.refresh(session.get_one(Line, 1))
    return order


def merge_what_is_there(session: LockingSession) -> object:
    return session.merge(Order(id=1, total=30)), session.merge(Line(id=1, value=10))


NOTHING: dict[str, Action] = {
    "to itself": set_to_itself,
    "and back": change_and_change_back,
    "same collection": same_collection,
    "removed and appended": remove_and_append_again,
    "read": read,
    "refresh": expire_and_refresh,
    "merge": merge_what_is_there,
}


@pytest.mark.parametrize("action", NOTHING.values(), ids=NOTHING)
def test_nothing_changed_needs_no_lock(session: LockingSession, action: Action) -> None:
    kept = action(session)
    with writes_sent(session) as sent:
        session.commit()
    assert sent == []
    assert kept


def append_comment(session: LockingSession) -> object:
    (order := session.get_one(Order, 1)).comments.append(Comment(id=9))
    return order


def remove_comment(session: LockingSession) -> object:
    (order := session.get_one(Order, 1)).comments.clear()
    return order


def change_what_is_not_declared(session: LockingSession) -> object:
    customer, comment = session.get_one(Customer, 1), session.get_one(Comment, 1)
    customer.name, comment.text = "Anna", "later"
    return customer, comment


def add_and_delete_what_is_not_declared(session: LockingSession) -> object:
    session.add_all([Customer(id=9, name="Cleo"), Comment(id=9, order_id=1)])
    session.delete(customer := session.get_one(Customer, 2))
    return customer


def add_a_tag_that_nobody_has(session: LockingSession) -> object:
    session.add(Tag(id=9, name="new"))
    (tag := session.get_one(Tag, 3)).name = "still none"
    return tag


OTHERS: dict[str, Action] = {
    "append to no part": append_comment,
    "remove from no part": remove_comment,
    "change": change_what_is_not_declared,
    "add and delete": add_and_delete_what_is_not_declared,
    "of no document": add_a_tag_that_nobody_has,
}


@pytest.mark.parametrize("action", OTHERS.values(), ids=OTHERS)
def test_what_belongs_to_no_document_needs_no_lock(session: LockingSession, action: Action) -> None:
    kept = action(session)
    with writes_sent(session) as sent:
        session.commit()
    assert sent
    assert kept


def test_a_statement_on_what_is_not_declared_needs_no_lock(session: LockingSession) -> None:
    session.execute(sa.update(Comment).values(text="late"))
    session.execute(sa.insert(Customer), [{"id": 8, "name": "x"}, {"id": 9, "name": "y"}])
    texts = sa.select(Tag.id + 7, Tag.name)
    session.execute(sa.insert(Comment).from_select(["id", "text"], texts))
    session.execute(sa.delete(Comment))
    session.execute(sa.delete(CUSTOMERS).where(Customer.id > 7))
    session.commit()


def test_a_change_marked_by_hand_is_one(session: LockingSession) -> None:
    tax = session.get_one(Tax, 1)
    attributes.flag_modified(tax, "rate")
    with refused(session, Order, 1, "Tax 1", "'rate'"):
        session.flush()


def test_one_true_change_among_others_that_are_none_is_found(session: LockingSession) -> None:
    kept = [set_to_itself(session), read(session)]
    (tax := session.get_one(Tax, 3)).rate = 7
    with refused(session, Order, 2, "Tax 3", "'rate'"):
        session.commit()
    assert kept
    assert tax.rate == 7
