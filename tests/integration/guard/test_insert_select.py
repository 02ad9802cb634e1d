"""INSERT .. FROM SELECT: allowed under the locks of the documents whose rows its SELECT names."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from sa_doclock import LockingSession
from tests.integration.guard.models import Line, Order, Plan, Step, order_tag
from tests.integration.guard.steps import count, hold, refused

pytestmark = pytest.mark.quick

LINES: Any = Line.__table__
NAMES = ["id", "order_no", "value"]


def copied(*where: Any) -> Any:
    """Return the INSERT of copies of lines, which stay in their orders."""
    return sa.insert(Line).from_select(
        NAMES, sa.select(Line.id + 10, Line.order_id, Line.value).where(*where)
    )


def test_without_the_lock_it_is_refused(session: LockingSession) -> None:
    with refused(session, Order, 1, "inserted", "by a statement"):
        session.execute(copied(Line.id == 1))
    held = hold(session, Order, 1)
    with refused(session, Order, 2):
        session.execute(copied())
    assert held


def test_with_the_locks_it_goes_through(session: LockingSession) -> None:
    held = hold(session, Order, 1, 2)
    session.execute(copied())
    session.execute(
        sa.insert(LINES).from_select(NAMES, sa.select(sa.literal(50), sa.literal(1), sa.literal(5)))
    )
    session.commit()
    assert held
    assert count(session, Line) == 7


def test_a_select_of_no_row_needs_no_lock(session: LockingSession) -> None:
    session.execute(copied(Line.id == 99))
    session.commit()


def test_bound_values_are_those_of_the_execution(session: LockingSession) -> None:
    rows = sa.select(LINES.c.id + 10, LINES.c.order_no, LINES.c.value)
    which = LINES.c.id == sa.bindparam("which")
    statement = sa.insert(LINES).from_select(NAMES, rows.where(which))
    held = hold(session, Order, 1)
    with refused(session, Order, 2):
        session.execute(statement, {"which": 3})
    session.execute(statement, {"which": 2})
    assert held


def test_links_need_the_locks_too(session: LockingSession) -> None:
    links = sa.insert(order_tag).from_select(
        ["order_id", "tag_id"], sa.select(Order.id, sa.literal(3))
    )
    held = hold(session, Order, 1)
    with refused(session, Order, 2):
        session.execute(links)
    held += hold(session, Order, 2)
    session.execute(links)
    session.commit()
    assert held


def test_parts_with_several_owners(session: LockingSession) -> None:
    steps = sa.insert(Step).from_select(
        ["id", "plan_id", "parent_id"],
        sa.select(Step.id + 1000, Step.plan_id, Step.parent_id).where(Step.id.in_((1, 111))),
    )
    with refused(session, Plan, 1):
        session.execute(steps)
    held = hold(session, Plan, 1)
    session.execute(steps)
    session.commit()
    assert held


def test_new_headers_need_no_lock(session: LockingSession) -> None:
    orders = sa.select(Order.id + 10, Order.total, Order.customer_id)
    session.execute(sa.insert(Order).from_select(["id", "total", "customer_id"], orders))
    session.commit()
    assert count(session, Order) == 4


@pytest.mark.databases("sqlite")
def test_one_that_may_overwrite_is_refused(session: LockingSession) -> None:
    held = hold(session, Order, 1)
    lines = sa.select(Line.id, Line.order_id, Line.value).where(Line.order_id == 1)
    statement = sqlite.insert(Line).from_select(NAMES, lines)
    with refused(session, Order, None, "may overwrite"):
        session.execute(statement.on_conflict_do_update(set_={"value": 0}))
    assert held


@pytest.mark.parametrize("union", [False, True])
@pytest.mark.parametrize("literal", [sa.literal_column, sa.text])
def test_a_literal_names_the_document(session: LockingSession, literal: Any, union: bool) -> None:
    rows: list[Any] = [sa.select(literal("60"), literal(number), literal("6")) for number in "12"]
    rows = [sa.union(one, one) for one in rows] if union else rows
    mine, other = (sa.insert(LINES).from_select(NAMES, one) for one in rows)
    held = hold(session, Order, 1)
    with refused(session, Order, 2):
        session.execute(other)
    session.execute(mine)
    session.commit()
    assert held
    assert count(session, Line) == 4


@pytest.mark.databases("sqlite")
def test_a_row_that_is_left_out_of_a_count_that_nobody_knows(session: LockingSession) -> None:
    mine = sa.select(LINES.c.id, LINES.c.order_no, LINES.c.value).where(LINES.c.order_no == 1)
    rows = mine.cte("mine")  # the driver of SQLite counts no rows of a statement that begins WITH
    again = sa.insert(LINES).prefix_with("OR IGNORE")
    held = hold(session, Order, 1)
    session.execute(again.from_select(NAMES, sa.select(rows.c.id, rows.c.order_no, rows.c.value)))
    session.commit()
    assert held
