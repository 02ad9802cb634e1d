"""The count of the rows that a statement has written: what it allows, and what it leaves as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import aliased

from sa_doclock import LockingSession
from tests.integration.guard.models import Line, Order
from tests.integration.guard.steps import hold, refused
from tests.support.databases import Database

LINES: Any = Line.__table__
ORDERS: Any = Order.__table__
VALUE: Any = sa.bindparam("old")
NEW: Any = sa.bindparam("new")
CHAIN = [{"old": 10, "new": 20}, {"old": 20, "new": 30}]


@pytest.mark.parametrize(
    "statement",
    [
        sa.update(LINES).where(LINES.c.value == VALUE, LINES.c.order_no == 1).values(value=NEW),
        sa.update(LINES).where(LINES.c.value == VALUE, LINES.c.order_no == 1),
    ],
)
def test_a_row_may_be_written_for_two_of_the_parameters(
    session: LockingSession, stored: Callable[[Any, Any], Any], statement: Any
) -> None:
    held = hold(session, Order, 1)
    session.execute(sa.update(LINES).where(LINES.c.id == 1).values(value=10))
    session.execute(sa.update(LINES).where(LINES.c.id == 2).values(value=20))
    session.execute(statement, [{**one, "value": one["new"]} for one in CHAIN])
    session.commit()
    assert held
    assert [stored(Line.value, ident) for ident in (1, 2)] == [30, 30]


@pytest.mark.databases("postgresql", "sqlite")
@pytest.mark.parametrize(
    "statement",
    [
        sa.update(LINES).where(LINES.c.order_no == 1).values(value=5).returning(LINES.c.id),
        sa.insert(ORDERS).values([{"id": 70}, {"id": 71}]).returning(ORDERS.c.id),
    ],
    ids=["update", "insert"],
)
def test_the_result_of_a_table_keeps_what_it_knows(
    session: LockingSession, documents: Database, statement: Any
) -> None:
    held = hold(session, Order, 1)
    result: Any = session.execute(statement)
    assert result.returns_rows
    assert [key for (key,) in result] in ([1, 2], [70, 71])
    if (
        documents.name == "postgresql" and statement.is_update
    ):  # SQLAlchemy closes the cursor of SQLite first
        assert result.rowcount == 2
    assert held


@pytest.mark.not_databases("mariadb")  # 10.11 knows no DELETE FROM .. AS
@pytest.mark.parametrize("written", [sa.update, sa.delete])
def test_an_alias_of_a_class_is_the_class(session: LockingSession, written: Any) -> None:
    line = aliased(Line)
    statement = written(line).execution_options(synchronize_session=False)
    statement = statement.values(value=5) if statement.is_update else statement
    held = hold(session, Order, 1)
    with refused(session, Order, 2):
        session.execute(statement.where(line.id.in_((2, 3))))
    session.execute(statement.where(line.id == 2))
    session.commit()
    assert held
