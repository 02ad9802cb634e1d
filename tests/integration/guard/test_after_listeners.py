"""A statement is judged as the program's own do_orm_execute listeners have made it."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import ORMExecuteState

from sa_doclock import LockingSession
from tests.integration.guard.models import Line, Order
from tests.integration.guard.steps import hold, refused

pytestmark = pytest.mark.databases("sqlite", "postgresql")  # of which both have RETURNING
LINES: Any = Line.__table__
STATEMENTS: dict[str, Any] = {
    "update": sa.update(Line).where(Line.order_id == 1).values(value=Line.value + 1),
    "table": LINES.update().where(LINES.c.order_no == 1).values(value=LINES.c.value + 1),
    "returning": sa.update(Line).where(Line.order_id == 1).values(value=7).returning(Line.id),
    "lambda": sa.lambda_stmt(lambda: sa.update(Line).where(Line.order_id == 1).values(value=3)),
}
OF_TWO: dict[str, Any] = {
    **dict.fromkeys(STATEMENTS, sa.update(Line).where(Line.order_id == 2).values(value=9)),
    "table": LINES.update().where(LINES.c.order_no == 2).values(value=9),
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_listener_that_writes_to_another_document_is_refused(
    session: LockingSession, name: str
) -> None:
    hold(session, Order, 1)

    @sa.event.listens_for(session, "do_orm_execute")
    def of_another(state: ORMExecuteState) -> None:
        if state.is_update or state.is_delete:
            state.statement = OF_TWO[name]

    with refused(session, Order, 2):
        session.execute(STATEMENTS[name])


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_listener_that_leaves_it_alone_changes_nothing(
    session: LockingSession, name: str
) -> None:
    hold(session, Order, 1)
    seen: list[bool] = []
    sa.event.listen(session, "do_orm_execute", lambda state: seen.append(state.is_select))
    session.execute(STATEMENTS[name])
    assert False in seen
    session.commit()
    with refused(session, Order, 1):
        session.execute(STATEMENTS[name])


def test_a_listener_may_write_by_itself(session: LockingSession) -> None:
    """Its own statement is judged, too."""
    hold(session, Order, 1)

    @sa.event.listens_for(session, "do_orm_execute")
    def also(state: ORMExecuteState) -> None:
        if state.is_update and not state.execution_options.get("also"):
            session.execute(OF_TWO["update"], execution_options={"also": True})

    with refused(session, Order, 2):
        session.execute(STATEMENTS["update"])


def test_a_listener_that_narrows_it_needs_no_more_locks(session: LockingSession) -> None:
    hold(session, Order, 1)

    @sa.event.listens_for(session, "do_orm_execute")
    def narrow(state: ORMExecuteState) -> None:
        if state.is_update:
            statement: Any = state.statement
            state.statement = statement.where(Line.order_id == 1)

    session.execute(sa.update(Line).values(value=5))
