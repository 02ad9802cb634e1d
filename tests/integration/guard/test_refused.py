"""A flush that writes to a document without its lock is refused before it sends a statement."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions, WrongIsolation
from tests.integration.guard.models import Customer, Entry, Line, Order, Tax, Voucher
from tests.integration.guard.steps import Action, hold, pending, refused, writes_sent

pytestmark = pytest.mark.quick

SharedRead, SnapshotRead, NoLock, None_ = (
    LockOptions.SharedRead,
    LockOptions.SnapshotRead,
    LockOptions.NoLock,
    LockOptions.None_,
)


class Case(NamedTuple):
    action: Action
    words: tuple[str, ...]  # the row and the attribute, as the error names them


def change(entity: type[Any], ident: int, **values: object) -> Action:
    def step(session: LockingSession) -> Any:
        found = session.get_one(entity, ident)
        for name, value in values.items():
            setattr(found, name, value)
        return found

    return step


def add(entity: type[Any], **values: object) -> Action:
    def step(session: LockingSession) -> Any:
        session.add(one := entity(**values))
        return one

    return step


def delete(entity: type[Any], ident: int) -> Action:
    def step(session: LockingSession) -> Any:
        session.delete(found := session.get_one(entity, ident))
        return found

    return step


def append_line(session: LockingSession) -> Any:
    (order := session.get_one(Order, 1)).lines.append(Line(id=9))
    return order


def remove_line(session: LockingSession) -> Any:
    order = session.get_one(Order, 1)
    return order.lines.pop()


def append_tax(session: LockingSession) -> Any:
    (line := session.get_one(Line, 2)).taxes.append(Tax(id=9))
    return line


def remove_tax(session: LockingSession) -> Any:
    line = session.get_one(Line, 1)
    return line.taxes.pop()


CASES: dict[str, Case] = {
    "change a header": Case(change(Order, 1, total=31), ("Order 1", "changed", "'total'")),
    "delete a header": Case(delete(Order, 1), ("Order", "deleted")),
    "change a part": Case(change(Line, 1, value=11), ("Line 1", "changed", "'value'")),
    "delete a part": Case(delete(Line, 2), ("Line 2", "deleted")),
    "insert a part": Case(add(Line, id=9, order_id=1), ("Line", "inserted")),
    "append a part": Case(append_line, ("Line", "inserted")),
    "remove a part": Case(remove_line, ()),
    "change a part of a part": Case(change(Tax, 1, rate=8), ("Tax 1", "changed", "'rate'")),
    "delete a part of a part": Case(delete(Tax, 1), ("Tax 1", "deleted")),
    "insert a part of a part": Case(add(Tax, id=9, line_id=1), ("Tax", "inserted")),
    "append a part of a part": Case(append_tax, ("Tax", "inserted")),
    "remove a part of a part": Case(remove_tax, ()),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@each_case
def test_it_is_refused_without_the_lock(session: LockingSession, case: Case) -> None:
    done = case.action(session)
    with refused(session, Order, 1, "ForUpdate", "get_entity(Order, 1", *case.words):
        session.flush()
    assert done is not None


@each_case
def test_it_is_still_pending_and_with_the_lock_it_goes_through(
    session: LockingSession, make_session: Callable[..., LockingSession], case: Case
) -> None:
    done = case.action(session)
    before = pending(session)
    with refused(session, Order, 1):
        session.commit()
    assert pending(session) == before
    assert before
    session.close()
    other = make_session()
    held = hold(other, Order, 1)
    done = case.action(other)
    with writes_sent(other) as sent:
        other.commit()
    assert sent
    assert held
    assert done is not None


@each_case
def test_the_lock_of_another_document_does_not_permit_it(
    session: LockingSession, case: Case
) -> None:
    held = hold(session, Order, 2)
    done = case.action(session)
    with refused(session, Order, 1, *case.words):
        session.flush()
    assert held
    assert done is not None


def test_all_that_was_changed_is_still_there_and_a_rollback_undoes_it(
    session: LockingSession,
) -> None:
    order, line = session.get_one(Order, 1), session.get_one(Line, 1)
    order.total, line.value = 31, 11
    with refused(session, Order, 1):
        session.flush()
    assert (order.total, line.value) == (31, 11)
    session.rollback()
    assert (order.total, line.value) == (30, 10)
    held = hold(session, Order, 1)
    line.value = 11
    session.commit()
    assert held


def test_a_row_that_is_changed_and_deleted_without_the_lock(session: LockingSession) -> None:
    line = session.get_one(Line, 2)
    with session.no_autoflush:
        line.value += 1
        session.delete(line)
    with refused(session, Order, 1, "Line 2", "deleted"):
        session.flush()


@pytest.mark.parametrize("held", [1, 2])
def test_a_row_that_is_moved_beside_others(session: LockingSession, held: int) -> None:
    kept = hold(session, Order, held)
    lines = [session.get_one(Line, ident) for ident in (1, 2, 3)]
    for line in lines:
        if line.order_id == held:
            line.value += 1
    lines[0].order_id = 2
    session.add(Customer(id=9, name="Cleo"))  # would be sent first
    with refused(session, Order, 3 - held, "Line 1"):
        session.flush()
    assert kept


@pytest.mark.parametrize(
    ("entity", "part", "keys"),
    [
        (Order, None, (1, 2)),
        (Order, (Line, "value", (1, 3)), (1, 2)),
        (Voucher, None, ((2024, 1), (2024, 2))),
        (Voucher, (Entry, "value", (1, 2)), ((2024, 1), (2024, 2))),
    ],
)
@pytest.mark.parametrize("held", [0, 1])
def test_two_rows_of_a_class_of_which_one_is_held(
    session: LockingSession,
    entity: type[Any],
    part: tuple[type[Any], str, tuple[int, int]] | None,
    keys: tuple[Any, Any],
    held: int,
) -> None:
    kept = hold(session, entity, keys[held])
    changed, name, idents = part or (entity, "total", keys)
    rows = [session.get_one(changed, ident) for ident in idents]
    for row in rows:
        setattr(row, name, getattr(row, name) + 1)
    with refused(session, entity, keys[1 - held]):
        session.flush()
    assert kept


# --------------------------------------------------------------------------------------------------
# Which locks permit a write, and for how long.

ForUpdate = LockOptions.ForUpdate
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
