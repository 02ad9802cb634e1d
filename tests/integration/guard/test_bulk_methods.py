"""bulk_save_objects(), bulk_insert_mappings() and bulk_update_mappings()."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import attributes

from sa_doclock import LockingSession, LockOptions, WrongIsolation
from tests.integration.guard.models import Comment, Customer, Entry, Line, Order, Tag, Tax, Voucher
from tests.integration.guard.steps import Action, hold, refused, writes_sent

pytestmark = pytest.mark.quick


Stored = Callable[[Any, Any], Any]


class Case(NamedTuple):
    action: Action
    touched: tuple[Any, ...]
    entity: type[Any] = Order


def save_new(session: LockingSession) -> None:
    session.bulk_save_objects([Line(id=8, order_id=1), Line(id=9, order_id=2)])


def save_new_generated(session: LockingSession) -> None:
    session.bulk_save_objects(Line(id=7 + one, order_id=one) for one in (1, 2))


def save_changed(session: LockingSession) -> None:
    with session.no_autoflush:
        lines = [session.get_one(Line, ident) for ident in (1, 3)]
    for line in lines:
        session.expunge(line)
        line.value = 0
    session.bulk_save_objects(lines)


def save_moved(session: LockingSession) -> None:
    tax = session.get_one(Tax, 3)
    session.expunge(tax)
    tax.line_id = 1
    session.bulk_save_objects([tax])


def insert(session: LockingSession) -> None:
    session.bulk_insert_mappings(Line, [{"id": 8, "order_id": 1}, {"id": 9, "order_id": 2}])


def insert_returning_defaults(session: LockingSession) -> None:
    rows = [{"id": 8, "order_id": 1}, {"id": 9, "order_id": 2}]
    session.bulk_insert_mappings(Line, rows, return_defaults=True)


def update(session: LockingSession) -> None:
    session.bulk_update_mappings(Line, [{"id": 1, "value": 0}, {"id": 3, "value": 0}])


def update_headers(session: LockingSession) -> None:
    session.bulk_update_mappings(Order, iter([{"id": 1, "total": 0}, {"id": 2, "total": 0}]))


def update_moved(session: LockingSession) -> None:
    session.bulk_update_mappings(Line, [{"id": 3, "order_id": 1}])


def update_composite(session: LockingSession) -> None:
    session.bulk_update_mappings(Entry, [{"id": 1, "year": 2024, "number": 2}])


CASES: dict[str, Case] = {
    one.__name__: Case(one, (1, 2))
    for one in (
        save_new,
        save_new_generated,
        save_changed,
        save_moved,
        insert,
        insert_returning_defaults,
        update,
        update_headers,
        update_moved,
    )
} | {"update_composite": Case(update_composite, ((2024, 1), (2024, 2)), Voucher)}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@each_case
def test_each_lock_is_needed(session: LockingSession, case: Case) -> None:
    for missing in case.touched:
        held = hold(session, case.entity, *(one for one in case.touched if one != missing))
        with refused(session, case.entity, missing):
            case.action(session)
        session.rollback()
        assert len(held) == 1


@each_case
def test_with_both_it_goes_through(session: LockingSession, case: Case) -> None:
    held = hold(session, case.entity, *case.touched)
    with writes_sent(session) as sent:
        case.action(session)
    session.commit()
    assert sent
    assert held


def test_what_is_not_declared_needs_no_lock(session: LockingSession) -> None:
    session.bulk_save_objects([Customer(id=9, name="Cleo"), Comment(id=9, order_id=1)])
    session.bulk_insert_mappings(Customer, [{"id": 8, "name": "Dan"}])
    session.bulk_update_mappings(Customer, [{"id": 1, "name": "Anna"}])
    session.commit()


def test_new_documents_need_no_lock(session: LockingSession, stored: Stored) -> None:
    session.bulk_save_objects([Order(id=8), Order(id=9)])
    session.bulk_save_objects([Line(id=8, order_id=8), Line(id=9, order_id=9)])
    session.bulk_update_mappings(Order, [{"id": 8, "total": 1}])
    session.commit()
    assert stored(Order.total, 8) == 1
    with refused(session, Order, 8):
        session.bulk_update_mappings(Order, [{"id": 8, "total": 2}])


def test_nor_with_their_parts_in_one_call(session: LockingSession, stored: Stored) -> None:
    session.bulk_save_objects([Order(id=9), Line(id=9, order_id=9), Tax(id=9, line_id=9)])
    session.commit()
    assert stored(Tax.line_id, 9) == 9


def test_what_was_bulk_saved_is_forgotten_with_its_savepoint(session: LockingSession) -> None:
    session.begin()
    with session.begin_nested() as savepoint:
        session.bulk_save_objects([Order(id=9)])
        savepoint.rollback()
    with refused(session, Order, 9):
        session.bulk_save_objects([Line(id=9, order_id=9)])


SNAPSHOT: dict[str, Action] = {
    "save": lambda s: s.bulk_save_objects([Customer(id=9, name="Cleo")]),
    "insert": lambda s: s.bulk_insert_mappings(Customer, [{"id": 9, "name": "Cleo"}]),
    "update": lambda s: s.bulk_update_mappings(Customer, [{"id": 1, "name": "Anna"}]),
}


@pytest.mark.parametrize("action", SNAPSHOT.values(), ids=SNAPSHOT)
def test_nothing_is_written_in_a_snapshot(session: LockingSession, action: Action) -> None:
    order = session.get_one_entity(Order, 1, LockOptions.SnapshotRead)
    with writes_sent(session) as sent, pytest.raises(WrongIsolation):
        action(session)
    assert sent == []
    assert order.total == 30


# --------------------------------------------------------------------------------------------------
# A write that does not change a document needs no lock.

CUSTOMERS: Any = Customer.__table__
NoChangeAction = Callable[[LockingSession], object]


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


NOTHING: dict[str, NoChangeAction] = {
    "to itself": set_to_itself,
    "and back": change_and_change_back,
    "same collection": same_collection,
    "removed and appended": remove_and_append_again,
    "read": read,
    "refresh": expire_and_refresh,
    "merge": merge_what_is_there,
}


@pytest.mark.parametrize("action", NOTHING.values(), ids=NOTHING)
def test_nothing_changed_needs_no_lock(session: LockingSession, action: NoChangeAction) -> None:
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


OTHERS: dict[str, NoChangeAction] = {
    "append to no part": append_comment,
    "remove from no part": remove_comment,
    "change": change_what_is_not_declared,
    "add and delete": add_and_delete_what_is_not_declared,
    "of no document": add_a_tag_that_nobody_has,
}


@pytest.mark.parametrize("action", OTHERS.values(), ids=OTHERS)
def test_what_belongs_to_no_document_needs_no_lock(
    session: LockingSession, action: NoChangeAction
) -> None:
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


# --------------------------------------------------------------------------------------------------
# The owners of many rows are read together.

TAXES: dict[str, Callable[[LockingSession, int], object]] = {
    "saved": lambda s, n: s.bulk_save_objects(Tax(id=50 + i, line_id=50 + i) for i in range(n)),
    "inserted": lambda s, n: s.bulk_insert_mappings(
        Tax, [{"id": 50 + i, "line_id": 50 + i} for i in range(n)]
    ),
    "updated": lambda s, n: s.bulk_update_mappings(
        Tax, [{"id": 20 + i, "rate": 3} for i in range(n)]
    ),
    "UPDATE": lambda s, n: s.execute(
        sa.update(Tax).where(Tax.id.between(20, 19 + n)).values(rate=3)
    ),
}


@pytest.mark.parametrize("write", TAXES.values(), ids=TAXES)
def test_the_lines_of_many_taxes_are_read_by_one_statement(
    session: LockingSession, write: Callable[[LockingSession, int], object]
) -> None:
    with session.unguarded():
        session.bulk_insert_mappings(Line, [{"id": n, "order_id": 1} for n in range(20, 80)])
        session.bulk_insert_mappings(Tax, [{"id": n, "line_id": n} for n in range(20, 50)])
    session.commit()
    selects = []
    for many in (2, 30):
        held, sent = hold(session, Order, 1), list[str]()
        note: Any = lambda *of, sent=sent: sent.append(of[2])  # noqa: E731
        sa.event.listen(session.connection(), "before_cursor_execute", note)
        write(session, many)
        selects.append(sum(statement.startswith("SELECT") for statement in sent))
        session.rollback()
        assert held
    assert selects[0] == selects[1] <= 3  # PostgreSQL is asked for the transaction, too
