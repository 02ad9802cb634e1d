"""Writes through a second class that the program maps on the table of a header or of a part."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import inspect, update
from sqlalchemy.orm import DeclarativeBase

from sa_doclock import LockingSession
from tests.integration.guard.models import Line, Order
from tests.integration.guard.steps import Action, hold, refused, writes_sent


class Other(DeclarativeBase):
    """The base of classes that know nothing of documents."""


class PlainOrder(Other):
    __table__ = Order.__table__


class PlainLine(Other):
    """The foreign key has its name of the database here."""

    __table__ = Line.__table__


def changed(session: LockingSession, entity: Any, **values: Any) -> None:
    row = session.get_one(entity, 1)
    for name, value in values.items():
        setattr(row, name, value)
    session.flush()


def deleted(session: LockingSession, entity: Any) -> None:
    session.delete(session.get_one(entity, 1))
    session.flush()


def added(session: LockingSession) -> None:
    session.add(PlainLine(id=99, order_no=1, value=1))
    session.flush()


ACTIONS: dict[str, Action] = {
    "header changed": lambda s: changed(s, PlainOrder, total=77),
    "part changed": lambda s: changed(s, PlainLine, value=77),
    "part deleted": lambda s: deleted(s, PlainLine),
    "part added": added,
    "bulk, header": lambda s: s.bulk_update_mappings(inspect(PlainOrder), [{"id": 1, "total": 77}]),
    "bulk, part": lambda s: s.bulk_update_mappings(inspect(PlainLine), [{"id": 1, "value": 77}]),
    "update header": lambda s: s.execute(update(PlainOrder).filter_by(id=1).values(total=7)),
    "update part": lambda s: s.execute(update(PlainLine).filter_by(id=1).values(value=7)),
}
each_action = pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)


@each_action
def test_a_write_needs_the_lock_of_the_document(session: LockingSession, action: Action) -> None:
    with refused(session, Order, 1):
        action(session)


def test_with_the_lock_it_goes_through(session: LockingSession) -> None:
    held = hold(session, Order, 1)
    with writes_sent(session) as sent:
        changed(session, PlainOrder, total=77)
        changed(session, PlainLine, value=77)
        added(session)
        session.delete(session.get_one(PlainLine, 2))
        session.flush()
        session.execute(update(PlainOrder).filter_by(id=1).values(total=7))
        session.execute(update(PlainLine).filter_by(order_no=1).values(value=7))
    session.commit()
    assert sent
    assert held


def test_a_moved_part_needs_both_locks(session: LockingSession) -> None:
    held = hold(session, Order, 1)
    with refused(session, Order, 2):
        changed(session, PlainLine, order_no=2)
    assert held
