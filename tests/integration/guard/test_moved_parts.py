"""A part that moves from one document to another needs both headers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, literal, update

from sa_doclock import LockingSession, LockOptions, UnsavedChanges
from tests.integration.guard.models import Entry, Line, Order, Plan, Step, Tax, Voucher
from tests.integration.guard.steps import hold, refused
from tests.integration.locking.call_counts import calls_of
from tests.support.rows import rows

pytestmark = pytest.mark.quick


MakeSession = Callable[..., LockingSession]


def by_foreign_key(session: LockingSession) -> Any:
    (line := session.get_one(Line, 1)).order_id = 2
    return line


def by_expired_foreign_key(session: LockingSession) -> Any:
    line = session.get_one(Line, 1)
    session.expire(line)
    line.order_id = 2
    return line


def by_backref(session: LockingSession) -> Any:
    line, order = session.get_one(Line, 1), session.get_one(Order, 2)
    line.order = order
    return line


def by_loaded_backref(session: LockingSession) -> Any:
    line, order = session.get_one(Line, 1), session.get_one(Order, 2)
    assert line.order.id == 1
    line.order = order
    return line, order


def by_expired_backref(session: LockingSession) -> Any:
    line, order = session.get_one(Line, 1), session.get_one(Order, 2)
    session.expire(line)
    line.order = order
    return line


def by_collection(session: LockingSession) -> Any:
    line, order = session.get_one(Line, 1), session.get_one(Order, 2)
    order.lines.append(line)
    return line


def by_both_collections(session: LockingSession) -> Any:
    first, second = session.get_one(Order, 1), session.get_one(Order, 2)
    second.lines.append(first.lines.pop(0))
    return first, second


def part_of_a_part(session: LockingSession) -> Any:
    (tax := session.get_one(Tax, 1)).line_id = 3
    return tax


def part_of_a_part_by_backref(session: LockingSession) -> Any:
    tax, line = session.get_one(Tax, 1), session.get_one(Line, 3)
    tax.line = line
    return tax


def entry_by_foreign_key(session: LockingSession) -> Any:
    (entry := session.get_one(Entry, 1)).number = 2
    return entry


def entry_by_expired_foreign_key(session: LockingSession) -> Any:
    entry = session.get_one(Entry, 1)
    session.expire(entry)
    entry.number = 2
    return entry


def entry_by_collection(session: LockingSession) -> Any:
    entry, voucher = session.get_one(Entry, 1), session.get_one(Voucher, (2024, 2))
    voucher.entries.append(entry)
    return entry, voucher


def entry_by_both_collections(session: LockingSession) -> Any:
    first, second = (session.get_one(Voucher, (2024, number)) for number in (1, 2))
    second.entries.append(first.entries.pop())
    return first, second


def step_by_parent(session: LockingSession) -> Any:
    (step := session.get_one(Step, 111)).parent_id = 2
    return step


def step_by_substeps(session: LockingSession) -> Any:
    step, other = session.get_one(Step, 11), session.get_one(Step, 2)
    other.substeps.append(step)
    return step


def step_to_the_top(session: LockingSession) -> Any:
    step, plan = session.get_one(Step, 111), session.get_one(Plan, 2)
    step.parent, step.plan = None, plan
    return step


ORDERS: tuple[Any, ...] = (Order, 1, 2)
VOUCHERS: tuple[Any, ...] = (Voucher, (2024, 1), (2024, 2))
PLANS: tuple[Any, ...] = (Plan, 1, 2)
MOVES: dict[str, tuple[Callable[[LockingSession], Any], tuple[Any, ...]]] = {
    move.__name__: (move, documents)
    for documents, moves in {
        ORDERS: (
            by_foreign_key,
            by_expired_foreign_key,
            by_backref,
            by_loaded_backref,
            by_expired_backref,
            by_collection,
            by_both_collections,
            part_of_a_part,
            part_of_a_part_by_backref,
        ),
        VOUCHERS: (
            entry_by_foreign_key,
            entry_by_expired_foreign_key,
            entry_by_collection,
            entry_by_both_collections,
        ),
        PLANS: (step_by_parent, step_by_substeps, step_to_the_top),
    }.items()
    for move in moves
}
each_move = pytest.mark.parametrize(("move", "documents_of_it"), MOVES.values(), ids=MOVES)


@each_move
def test_the_old_header_alone_is_not_enough(
    session: LockingSession, move: Callable[[LockingSession], Any], documents_of_it: tuple[Any, ...]
) -> None:
    entity, old, new = documents_of_it
    held = hold(session, entity, old)
    moved = move(session)
    with refused(session, entity, new):
        session.flush()
    assert all((held, moved))


@each_move
def test_the_new_header_alone_is_not_enough(
    session: LockingSession, move: Callable[[LockingSession], Any], documents_of_it: tuple[Any, ...]
) -> None:
    entity, old, new = documents_of_it
    held = hold(session, entity, new)
    moved = move(session)
    with refused(session, entity, old):
        session.flush()
    assert all((held, moved))


@each_move
def test_both_are(
    session: LockingSession, move: Callable[[LockingSession], Any], documents_of_it: tuple[Any, ...]
) -> None:
    entity, old, new = documents_of_it
    held = hold(session, entity, old, new)
    moved = move(session)
    session.commit()
    assert all((held, moved))


def test_a_move_within_a_document_needs_only_this_one(session: LockingSession) -> None:
    held = hold(session, Order, 1)
    tax, line = session.get_one(Tax, 1), session.get_one(Line, 2)
    tax.line = line
    session.commit()
    assert held


def test_a_part_that_was_moved_and_is_deleted_belongs_to_the_document_it_left(
    session: LockingSession,
) -> None:
    held = hold(session, Voucher, (2024, 2))
    entry = session.get_one(Entry, 1)
    with session.no_autoflush:
        entry.number = 2
        session.delete(entry)
    with refused(session, Voucher, (2024, 1)):
        session.flush()
    session.rollback()
    held = hold(session, Voucher, (2024, 1), (2024, 2))
    entry.number = 2
    session.delete(entry)
    session.commit()
    assert held


@rows("own", [True, False])
def test_a_pending_tax_whose_line_came_from_another_document(
    make_session: MakeSession, engine: Engine, own: bool
) -> None:
    """It belongs to the locked order, wherever the session saw it before."""
    with make_session(expire_on_commit=False) as session:
        first, line = hold(session, Order, 1), session.get_one(Line, 1)
        tax = line.taxes[0]
        (second,) = hold(session, Order, 2)
        if own:
            line.order = second
        session.commit()
        with engine.begin() as connection:
            connection.execute(update(Tax).where(Tax.id == tax.id).values(rate=50))
            connection.execute(update(Line).where(Line.id == line.id).values(order_id=2))
        tax.rate += 1
        with pytest.raises(UnsavedChanges, match="Tax"):
            session.get_entity(Order, 2, LockOptions.ForUpdate)
        assert first
    with engine.begin() as connection:
        connection.execute(update(Line).where(Line.id == 1).values(order_id=1))


@pytest.mark.databases("sqlite")
def test_what_is_pending_in_new_documents_costs_a_lock_nothing(session: LockingSession) -> None:
    def lock() -> None:
        kept.append(session.get_entity(Order, 1, LockOptions.ForUpdate))

    def calls(count: int) -> int:
        for number in range(100, 100 + count):
            tax = Tax(id=number)
            kept.append(Order(id=number, lines=[Line(id=number, taxes=[tax])]))
            session.add(kept[-1])
        kept.extend(hold(session, Order, 2))  # checks each of them once
        found = calls_of(lock)
        session.rollback()
        return len(found)

    kept: list[object] = []
    calls(1)
    assert calls(30) == calls(10)


@pytest.mark.not_databases("sqlite", "sqlite-journal")  # no session gets past its lock
def test_a_new_tax_whose_line_comes_to_another_document_meanwhile(
    make_session: MakeSession, engine: Engine
) -> None:
    with make_session(autoflush=False) as session:
        line = session.get_one(Line, 1)
        session.add(Tax(id=100, line_id=line.id))
        nothing = session.get_entity(Order, 3, LockOptions.ForUpdate)  # reads the line again
        with engine.begin() as connection:
            connection.execute(update(Line).where(Line.id == 1).values(order_id=2))
        with pytest.raises(UnsavedChanges, match="Tax"):
            session.get_entity(Order, 2, LockOptions.ForUpdate)
        assert nothing is None
    with engine.begin() as connection:
        connection.execute(update(Line).where(Line.id == 1).values(order_id=1))


# --------------------------------------------------------------------------------------------------
# Parts from another session, moved to another document after they were read.


@rows("number, change", [(1, LockingSession.add), (2, LockingSession.delete)])
def test_a_move_leaves_the_document_that_the_row_is_in_now(
    session: LockingSession,
    engine: Engine,
    number: int,
    change: Callable[[LockingSession, Line], None],
) -> None:
    with LockingSession(engine) as before:
        line = before.get_one(Line, number)
        before.expunge_all()
    with engine.begin() as connection:
        connection.execute(update(Line).where(Line.id == number).values(order_id=2))
    line.order_id = 9
    held = hold(session, Order, 1)
    session.add(Order(id=9))
    session.flush()
    with refused(session, Order, 2):
        change(session, line)
        session.flush()
    session.close()
    assert held


def change_by_expression(session: LockingSession) -> Any:
    (line := session.get_one(Line, 1)).order_id = literal(1) + 1
    return line


def add_by_expression(session: LockingSession) -> Any:
    session.add(line := Line(id=9, order_id=literal(1) + 1))
    return line


@pytest.mark.parametrize("change", [change_by_expression, add_by_expression])
def test_an_sql_expression_that_names_the_owner_is_checked_when_it_is_written(
    session: LockingSession, change: Callable[[LockingSession], Any]
) -> None:
    held: list[Any] = list(hold(session, Order, 1))
    kept = change(session)
    with refused(session, Order, 2, sent_first=True):
        session.flush()
    session.rollback()
    held = [*hold(session, Order, 1), *hold(session, Order, 2)]
    kept = change(session)
    session.commit()
    assert kept.order_id == 2
    assert held
