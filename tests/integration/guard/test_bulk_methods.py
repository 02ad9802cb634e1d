"""bulk_save_objects(), bulk_insert_mappings() and bulk_update_mappings()."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from sa_doclock import LockingSession, LockOptions, WrongIsolation
from tests.integration.guard.models import Comment, Customer, Entry, Line, Order, Tax, Voucher
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
