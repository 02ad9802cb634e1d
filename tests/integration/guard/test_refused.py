"""A flush that writes to a document without its lock is refused before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from sa_doclock import LockingSession
from tests.integration.guard.models import Customer, Entry, Line, Order, Tax, Voucher
from tests.integration.guard.steps import Action, hold, pending, refused, writes_sent

pytestmark = pytest.mark.quick


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
