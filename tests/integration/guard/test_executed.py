"""Layers between a statement and the rows that it writes do not hide the write."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import selectinload

from sa_doclock import LockingSession, UnlockedWrite
from tests.integration.guard.models import Customer, Line, Order
from tests.integration.guard.steps import hold, writes_sent

pytestmark = pytest.mark.quick


def test_what_is_pending_is_flushed_before_the_database_is_asked(session: LockingSession) -> None:
    customer = session.get_one(Customer, 1)
    customer.name = "Zoe"
    of_zoe = sa.select(Customer.id).where(Customer.name == "Zoe")
    with pytest.raises(UnlockedWrite):
        session.execute(sa.update(Order).where(Order.customer_id.in_(of_zoe)).values(total=0))
    assert customer not in session.dirty


@pytest.mark.databases("postgresql", "sqlite")  # which have UPDATE .. RETURNING
def test_what_an_update_returns_through_a_select_is_written_too(session: LockingSession) -> None:
    update = sa.update(Line).where(Line.id == 1).values(value=0).returning(Line)
    statement = sa.select(Line).from_statement(update)
    with writes_sent(session) as sent, pytest.raises(UnlockedWrite):
        session.scalars(statement).all()
    assert sent == []
    held = hold(session, Order, 1)
    assert [line.value for line in session.scalars(statement)] == [0]
    assert held


@pytest.mark.databases("postgresql", "sqlite")
def test_a_document_that_an_insert_returns_is_new(session: LockingSession) -> None:
    order = session.scalars(
        sa.insert(Order).values(id=sa.literal(4) + 5, total=1).returning(Order)
    ).one()
    order.total = 2
    session.flush()


@pytest.mark.databases("postgresql", "sqlite")
def test_a_key_that_is_an_expression_is_new(session: LockingSession) -> None:
    highest = sa.select(sa.func.max(Order.id) + 1).scalar_subquery()
    order = Order(id=highest, total=0)
    session.add(order)
    session.flush()


@pytest.mark.parametrize("how", [pickle.dumps, copy.copy])
def test_an_object_can_be_pickled(session: LockingSession, how: Callable[[Any], Any]) -> None:
    options = [selectinload(Order.lines)]
    order = session.get_one(Order, 1, options=options)
    assert how(order)
    if how is pickle.dumps:
        assert len(pickle.loads(pickle.dumps(order)).lines) == 2


@pytest.mark.databases("sqlite")  # which has the schema "main" always
def test_the_rows_are_read_from_the_schema_of_the_statement(session: LockingSession) -> None:
    sent: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        sent.append(statement)

    update = sa.update(Line).where(Line.id == 1).values(value=0)
    bind = session.get_bind()
    sa.event.listen(bind, "before_cursor_execute", note)
    try:
        with pytest.raises(UnlockedWrite):
            session.execute(update.execution_options(schema_translate_map={None: "main"}))
    finally:
        sa.event.remove(bind, "before_cursor_execute", note)
    (select,) = [statement for statement in sent if statement.startswith("SELECT")]
    assert f"FROM main.{Line.__tablename__}" in select
