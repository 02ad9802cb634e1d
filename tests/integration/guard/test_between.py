"""Another session commits between the question of the guard and the statement that it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import PendingRollbackError

from sa_doclock import LockingSession, UnlockedWrite
from tests.integration.guard.models import Customer, Line, Order, Repair, Tax, Ticket, Work
from tests.integration.guard.steps import Action, hold
from tests.support.databases import Database

WRITES = ("UPDATE", "DELETE", "INSERT")
LINES: Any = Line.__table__
WORK: Any = Work.__table__


@contextmanager
def before_the_write(
    session: LockingSession, database: Database, meanwhile: sa.Executable
) -> Iterator[None]:
    """Have another session commit this statement, before ours sends its first lock or write."""
    other, left = database.engine(poolclass=sa.NullPool), [meanwhile]

    def run(_: object, __: object, statement: str, *___: object) -> None:
        locks = "FOR UPDATE" in statement
        if (locks or statement.lstrip().upper().startswith(WRITES)) and left:
            with other.begin() as connection:
                connection.execute(left.pop())

    bind = session.get_bind()
    sa.event.listen(bind, "before_cursor_execute", run)
    try:
        yield
    finally:
        sa.event.remove(bind, "before_cursor_execute", run)
    assert left == []


class Case(NamedTuple):
    action: Action
    meanwhile: sa.Executable
    before: sa.Executable = sa.select(1)
    held: int | None = 1
    entity: type[Any] = Order


def run(statement: Any) -> Action:
    return lambda session: session.execute(statement)


COMES = sa.update(LINES).where(LINES.c.id == 3).values(value=99)
LARGE = Line.value > 15
CASES: dict[str, Case] = {
    "parts": Case(run(sa.update(Line).where(LARGE).values(value=0)), COMES),
    "parts, deleted": Case(
        run(sa.delete(Tax).where(Tax.rate > 50)), sa.update(Tax).where(Tax.id == 3).values(rate=99)
    ),
    "parts, moved": Case(run(sa.update(Line).where(LARGE).values(order_id=1)), COMES),
    "table": Case(run(sa.update(LINES).where(LINES.c.value > 15).values(value=0)), COMES),
    "query": Case(lambda s: s.query(Line).filter(LARGE).update({"value": 0}), COMES),
    "headers": Case(
        run(sa.update(Order).where(Order.total > 20).values(total=0)),
        sa.update(Order).where(Order.id == 2).values(total=99),
    ),
    "joined": Case(
        run(sa.update(Line).where(LARGE, Order.id >= Line.order_id).values(value=0)), COMES
    ),
    "copied": Case(
        run(
            sa.insert(LINES).from_select(
                ["id", "order_no", "value"],
                sa.select(LINES.c.id + 10, LINES.c.order_no, LINES.c.value).where(
                    LINES.c.value > 15
                ),
            )
        ),
        COMES,
    ),
    "copied, of another": Case(
        run(
            sa.insert(LINES).from_select(
                ["id", "order_no", "value"],
                sa.select(LINES.c.id + 10, LINES.c.order_no, LINES.c.value).where(LINES.c.id == 3),
            )
        ),
        sa.update(LINES).where(LINES.c.id == 3).values(order_no=2),
        sa.update(LINES).where(LINES.c.id == 3).values(order_no=1),
    ),
    "a class above": Case(
        run(sa.update(Work).where(Work.hours > 5).values(hours=0)),
        sa.update(Work).where(Work.id == 2).values(hours=9),
        held=None,
    ),
}


def state(stored: Callable[[Any, Any], Any]) -> list[Any]:
    keys = [
        (Line.value, 3),
        (Line.order_id, 3),
        (Line.value, 13),
        (Order.total, 2),
        (Work.hours, 2),
    ]
    return [stored(*one) for one in keys]


ORPHAN, ADOPTED = (sa.update(WORK).where(WORK.c.id == 1).values(fault_id=n) for n in (None, 2))
ONE = sa.update(Repair).where(Repair.id == 1)
CASES["of no document"] = Case(run(ONE.values(hours=7)), ADOPTED, ORPHAN, None)
CASES["of no document, moved"] = Case(run(ONE.values(fault_id=1)), ADOPTED, ORPHAN, 1, Ticket)
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@each_case
@pytest.mark.not_databases("sqlite", "sqlite-journal")  # whose lock nobody passes
def test_a_row_that_comes_to_match_is_not_written(
    session: LockingSession, documents: Database, stored: Callable[[Any, Any], Any], case: Case
) -> None:
    with documents.engine().begin() as connection:
        connection.execute(case.before)
    held = hold(session, case.entity, case.held) if case.held else []
    raises = pytest.raises(UnlockedWrite, match="came to it after")
    with before_the_write(session, documents, case.meanwhile), raises:
        case.action(session)
    committed = state(stored)
    with pytest.raises(PendingRollbackError, match="wrote without one"):
        session.execute(sa.select(1))
    with pytest.raises(PendingRollbackError):
        session.commit()
    session.rollback()
    assert state(stored) == committed
    assert held == [] or held


@pytest.mark.parametrize("returned", [False, True])
def test_where_nothing_was_held_either(
    session: LockingSession,
    documents: Database,
    stored: Callable[[Any, Any], Any],
    returned: bool,
) -> None:
    statement: Any = sa.update(Line).where(Line.value > 50).values(value=0)
    if returned and documents.name not in ("postgresql", "sqlite"):
        pytest.skip("has no UPDATE .. RETURNING")
    statement = statement.returning(Line) if returned else statement
    with before_the_write(session, documents, COMES), pytest.raises(UnlockedWrite):
        session.execute(statement)
    session.rollback()
    assert stored(Line.value, 3) == 99


@pytest.mark.not_databases("sqlite", "sqlite-journal")
def test_the_rollback_of_a_savepoint_ends_it(
    session: LockingSession, documents: Database, stored: Callable[[Any, Any], Any]
) -> None:
    savepoint = session.begin_nested()
    statement = sa.update(Line).where(Line.value > 50).values(value=0)
    with before_the_write(session, documents, COMES), pytest.raises(UnlockedWrite):
        session.execute(statement)
    savepoint.rollback()
    session.commit()
    assert stored(Line.value, 3) == 99


def test_a_row_that_has_left_is_no_reason(session: LockingSession, documents: Database) -> None:
    statement = sa.update(Work).where(Work.hours == 0, Work.kind == "work").values(hours=1)
    leaves = sa.update(Work).where(Work.id == 3).values(hours=2)
    with before_the_write(session, documents, leaves):
        session.execute(statement)
    session.commit()


def test_rows_of_no_document_count_too(session: LockingSession) -> None:
    session.execute(sa.update(Work).where(Work.id == 3).values(hours=1))
    session.commit()


@pytest.mark.databases("mysql", "mariadb")
def test_rows_of_two_tables_are_not_counted(session: LockingSession) -> None:
    both = sa.update(Line).where(Line.id == 1, Customer.id == Line.id)
    held = hold(session, Order, 1)
    session.execute(both.values({Line.value: 5, Customer.name: "Zoe"}))
    session.commit()
    assert held
