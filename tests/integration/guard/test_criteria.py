"""with_loader_criteria(): in what the program selects, and in what it writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import ORMExecuteState, with_loader_criteria

from sa_doclock import LockingSession
from tests.integration.guard.models import Budget, Line, Order, Post, Repair, Tax, Ticket, Work
from tests.integration.guard.steps import Action, hold, refused
from tests.support.rows import rows

MakeSession = Callable[..., LockingSession]


def hide(session: LockingSession, entity: Any, criterion: Any) -> None:
    """Hide rows from all that the session selects, as SQLAlchemy's recipe for deleted rows does."""

    @sa.event.listens_for(session, "do_orm_execute")
    def select_others(state: ORMExecuteState) -> None:
        if state.is_select and not state.is_column_load and not state.is_relationship_load:
            option = with_loader_criteria(entity, sa.not_(criterion), include_aliases=True)
            state.statement = state.statement.options(option)


def change_tax(session: LockingSession) -> None:
    session.get_one(Tax, 1).rate = 8
    session.flush()


def add_post(session: LockingSession) -> None:
    session.add(Post(id=9, code="a"))
    session.flush()


HIDDEN: dict[str, tuple[Any, Any, Any, Action]] = {
    "a part of a hidden part": (Line, Line.id == 1, Order, change_tax),
    "a part whose header is hidden": (Budget, Budget.code == "a", Budget, add_post),
    "rows by key": (
        *(Line, Line.id == 1, Order),
        lambda session: session.execute(sa.update(Line), [{"id": 1, "value": 7}]),
    ),
    "of a statement": (
        *(Line, Line.id == 1, Order),
        lambda session: session.execute(sa.update(Tax).where(Tax.id == 1).values(rate=8)),
    ),
    "a statement": (
        *(Line, Line.id == 2, Order),
        lambda session: session.execute(sa.delete(Line).where(Line.id == 2)),
    ),
}


@rows("name", HIDDEN)
def test_a_row_that_the_program_hides_from_itself_has_a_document(
    make_session: MakeSession, name: str
) -> None:
    entity, criterion, document, write = HIDDEN[name]
    with make_session() as session:
        hide(session, entity, criterion)
        with refused(session, document, 1):
            write(session)
    with make_session() as session:
        held = hold(session, document, 1)
        hide(session, entity, criterion)
        with session.unguarded():  # it is the same write
            write(session)
        session.rollback()
        assert held


UPDATE: Any = sa.update(Line).values(value=7)
FIRST: Any = with_loader_criteria(Line, Line.order_id == 1)
OF_FIRST: dict[str, tuple[Any, int]] = {
    "update": (UPDATE.options(FIRST), 2),
    "delete": (sa.delete(Line).where(Line.id == 2).options(FIRST), 1),
    "of another class": (
        UPDATE.where(Line.order_id == Order.id).options(
            with_loader_criteria(Order, Order.id == 1), FIRST
        ),
        2,
    ),
}


@rows("name", OF_FIRST)
def test_criteria_narrow_what_is_written(make_session: MakeSession, name: str) -> None:
    statement, written = OF_FIRST[name]
    with make_session() as session:
        held = hold(session, Order, 1)
        result: Any = session.execute(statement)
        assert result.rowcount == written
        assert held
    with make_session() as session, refused(session, Order, 1):
        session.execute(statement)


@pytest.mark.parametrize("of_subclass", [False, True])
def test_criteria_that_do_not_narrow_it(session: LockingSession, of_subclass: bool) -> None:
    """They are of a class that the statement does not name, or widen what NOT IN leaves."""
    if of_subclass:
        held: Any = hold(session, Ticket, 1)
        none = with_loader_criteria(Repair, Repair.id == 1)
        statement: Any = sa.update(Work).where(Work.id < 3).values(hours=7).options(none)
    else:
        held = hold(session, Order, 1)
        none = with_loader_criteria(Tax, Tax.id == 0)
        statement = UPDATE.where(Line.id.not_in(sa.select(Tax.line_id))).options(none)
    with refused(session, Ticket if of_subclass else Order, 2):
        session.execute(statement)
    assert held
