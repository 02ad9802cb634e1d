"""The locks that permit a write, and for how long."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions, WrongIsolation
from tests.integration.guard.models import Customer, Line, Order
from tests.integration.guard.steps import hold, pending, refused, writes_sent

pytestmark = pytest.mark.quick

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
SnapshotRead, NoLock, None_ = LockOptions.SnapshotRead, LockOptions.NoLock, LockOptions.None_
Stored = Callable[[Any, Any], Any]


def test_for_update_permits_header_and_parts(session: LockingSession, stored: Stored) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate)
    order.total = 31
    order.lines[0].value = 11
    order.lines[0].taxes[0].rate = 8
    session.commit()
    assert (stored(Order.total, 1), stored(Line.value, 1)) == (31, 11)


def test_rows_of_a_set_locked_for_update_are_permitted(session: LockingSession) -> None:
    orders = session.scalars(session.entity_set(Order, ForUpdate)).all()
    for order in orders:
        order.total += 1
        order.lines[0].value += 1
    session.commit()


@pytest.mark.parametrize("how", [{}, {"key_share": True}], ids=str)
def test_a_with_for_update_of_the_program_permits(
    session: LockingSession, how: dict[str, bool]
) -> None:
    orders: list[Order | None] = [
        session.get(Order, 1, with_for_update=how or True),
        session.scalars(
            sa.select(Order).where(Order.id == 2).with_for_update(key_share="key_share" in how)
        ).one(),
    ]
    for order in orders:
        assert order is not None
        order.total += 1
        order.lines[0].value += 1
    session.commit()


ORDERS: Any = Order.__table__
KEYS = {
    "attribute": sa.select(Order.id),
    "label": sa.select(Order.id.label("order")),
    "column": sa.select(ORDERS.c.total, ORDERS.c.id),
    "alias": sa.select(ORDERS.alias()),
}


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_the_key_of_a_locked_row_permits(
    session: LockingSession, stored: Stored, keys: sa.Select[Any]
) -> None:
    line = session.get_one(Line, 1)
    session.execute(keys.with_for_update()).all()
    line.value = 11
    session.execute(sa.update(Order).where(Order.id == 2).values(total=77))
    session.commit()
    assert (stored(Line.value, 1), stored(Order.total, 2)) == (11, 77)


def test_a_locked_row_without_its_key_permits_nothing(session: LockingSession) -> None:
    line = session.get_one(Line, 1)
    session.execute(sa.select(ORDERS.c.total).with_for_update()).all()
    line.value = 11
    with refused(session, Order, 1):
        session.flush()


def test_a_with_for_update_read_does_not_permit(session: LockingSession) -> None:
    order = session.get(Order, 1, with_for_update={"read": True})
    assert order is not None
    order.lines[0].value = 11
    with refused(session, Order, 1):
        session.flush()


@pytest.mark.parametrize("lock", [None_, NoLock, SharedRead])
def test_what_only_reads_does_not_permit(session: LockingSession, lock: LockOptions) -> None:
    order = session.get_one_entity(Order, 1, lock)
    order.lines[0].value = 11
    words = (
        ("holds the document by SHARED READ only",) if lock is SharedRead else ("does not hold",)
    )
    with refused(session, Order, 1, *words):
        session.flush()


def test_nothing_is_written_in_a_snapshot(session: LockingSession) -> None:
    order = session.get_one_entity(Order, 1, SnapshotRead)
    order.total = 31
    with writes_sent(session) as sent, pytest.raises(WrongIsolation):
        session.flush()
    assert sent == []
    assert pending(session) == {order}


def test_not_even_what_is_not_declared(session: LockingSession) -> None:
    order = session.get_one_entity(Order, 1, SnapshotRead)
    session.add(Customer(id=9, name="Cleo"))
    with writes_sent(session) as sent, pytest.raises(WrongIsolation):
        session.flush()
    assert sent == []
    assert order.total == 30


@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_the_lock_ends_with_its_transaction(session: LockingSession, end: str) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate)
    line = order.lines[0]
    getattr(session, end)()
    line = session.get_one(Line, line.id) if end == "close" else line
    line.value = 11
    with refused(session, Order, 1, "does not hold"):
        session.flush()


def test_a_lock_taken_in_a_savepoint_ends_with_its_rollback(session: LockingSession) -> None:
    line = session.get_one(Line, 1)
    with session.begin_nested() as savepoint:
        order = session.get_one_entity(Order, 1, ForUpdate)
        line.value = 11
        session.flush()
        savepoint.rollback()
    line.value = 12
    with refused(session, Order, 1):
        session.flush()
    assert order is line.order


def test_a_lock_taken_in_a_savepoint_outlives_its_release(session: LockingSession) -> None:
    with session.begin_nested():
        order = session.get_one_entity(Order, 1, ForUpdate)
    order.total = 31
    session.commit()


def test_a_lock_taken_before_a_savepoint_outlives_its_rollback(session: LockingSession) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate)
    with session.begin_nested() as savepoint:
        order.total = 31
        session.flush()
        savepoint.rollback()
    order.total = 32
    session.commit()


def test_an_autoflush_is_refused_too(session: LockingSession) -> None:
    line = session.get_one(Line, 1)
    line.value = 11
    with refused(session, Order, 1, "Line 1", "'value'"):
        session.scalars(sa.select(Customer)).all()
    assert line.value == 11


def test_an_autoflush_under_the_lock_is_not(session: LockingSession) -> None:
    held = hold(session, Order, 1)
    line = session.get_one(Line, 1)
    line.value = 11
    assert session.scalars(sa.select(Line.value).where(Line.id == 1)).one() == 11
    assert held


def test_nothing_is_kept_of_a_row_when_its_session_is_gone(engine: sa.Engine) -> None:
    session = LockingSession(engine)
    line = hold(session, Order, 1)[0].lines[0]
    line.value = 11
    session.commit()
    session.close()
    state = weakref.ref(sa.inspect(line))
    del line, session
    gc.collect()
    assert state() is None
