"""The private names of INSERT and UPDATE that sqlalchemy_internals.py reads mean what they meant.

Read from them: ``_values``, ``_ordered_values`` (2.0), ``_multi_values``, ``select``,
``_post_values_clause`` and the names of its classes.
"""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import BindParameter
from sqlalchemy.dialects import mysql, postgresql, sqlite

from sa_doclock import LockingSession
from sa_doclock.dml_internals import Values, values_of
from tests.support.models import Line, Order
from tests.support.rows import rows

LINES: Any = Line.__table__
POSITIONS = [column.key for column in LINES.columns]


def plain(values: Values) -> list[dict[str, Any]]:
    """Return the rows by names of columns, with what their parameters are bound to."""
    return [
        {
            column if isinstance(column, str) else column.key: (
                value.value if isinstance(value, BindParameter) else value
            )
            for column, value in row.items()
        }
        for row in values.rows
    ]


ONE = {"id": 9, "order_id": 1}
TWO = {"id": 10, "order_id": 2}
FULL = {"id": 9, "order_id": 1, "name": "x", "value": 0}
CASES: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "no values": (sa.insert(Line), []),
    "names": (sa.insert(Line).values(id=9, order_id=1), [ONE]),
    "dict": (sa.insert(Line).values(ONE), [ONE]),
    "attributes": (sa.insert(Line).values({Line.id: 9, Line.order_id: 1}), [ONE]),
    "columns": (sa.insert(LINES).values({LINES.c.id: 9, LINES.c.order_id: 1}), [ONE]),
    "two calls": (sa.insert(Line).values(id=9).values(order_id=1), [ONE]),
    "tuple": (sa.insert(LINES).values(tuple(FULL[name] for name in POSITIONS)), [FULL]),
    "several": (sa.insert(Line).values([ONE, TWO]), [ONE, TWO]),
    "several of a table": (sa.insert(LINES).values([ONE, TWO]), [ONE, TWO]),
    "several calls": (sa.insert(Line).values([ONE]).values([TWO]), [ONE, TWO]),
    "several by attribute": (
        sa.insert(Line).values([{Line.id: 9, Line.order_id: 1}]),
        [ONE],
    ),
    "several tuples": (sa.insert(LINES).values([tuple(FULL[n] for n in POSITIONS)]), [FULL]),
    "update": (sa.update(Line).values(order_id=1), [{"order_id": 1}]),
    "update by attribute": (sa.update(Line).values({Line.order_id: 1}), [{"order_id": 1}]),
    "update of nothing": (sa.update(Line).where(Line.id == 1), []),
    "ordered": (
        sa.update(Line).ordered_values((Line.value, 3), (Line.order_id, 1)),
        [{"value": 3, "order_id": 1}],
    ),
    "ordered by name": (
        sa.update(LINES).ordered_values(("value", 3), ("order_id", 1)),
        [{"value": 3, "order_id": 1}],
    ),
}


@rows(("statement", "rows"), CASES.values(), ids=CASES)
def test_what_is_set_is_reported_row_by_row(statement: Any, rows: list[dict[str, Any]]) -> None:
    values = values_of(statement)
    assert plain(values) == rows
    assert not values.from_select
    assert not values.overwrites


def test_an_expression_stays_one() -> None:
    (row,) = values_of(sa.update(Line).values(value=Line.value + 1)).rows
    (value,) = row.values()
    assert isinstance(value, sa.ColumnElement)
    assert not isinstance(value, BindParameter)


def test_null_is_reported(session: LockingSession) -> None:
    (row,) = values_of(sa.update(Line).values(order_id=None)).rows
    (value,) = row.values()
    assert getattr(value, "value", value) is None or isinstance(value, type(sa.null()))
    assert session.execute(sa.select(sa.null())).scalar() is None


def test_from_select_is_reported() -> None:
    lines = sa.select(Line.id + 10, Line.order_id)
    assert values_of(sa.insert(Line).from_select(["id", "order_id"], lines)).from_select
    assert values_of(sa.insert(LINES).from_select(["id", "order_id"], lines)).from_select
    assert not values_of(sa.insert(Line)).from_select
    assert not values_of(sa.update(Line).values(value=1)).from_select


CONFLICTS: dict[str, tuple[Any, bool]] = {
    "postgresql update": (
        postgresql.insert(Order)
        .values(id=1)
        .on_conflict_do_update(index_elements=["id"], set_={"total": 1}),
        True,
    ),
    "postgresql nothing": (postgresql.insert(Order).values(id=1).on_conflict_do_nothing(), False),
    "postgresql plain": (postgresql.insert(Order).values(id=1), False),
    "sqlite update": (
        sqlite.insert(Order)
        .values(id=1)
        .on_conflict_do_update(index_elements=["id"], set_={"total": 1}),
        True,
    ),
    "sqlite nothing": (sqlite.insert(Order).values(id=1).on_conflict_do_nothing(), False),
    "sqlite plain": (sqlite.insert(Order).values(id=1), False),
    "mysql update": (mysql.insert(Order).values(id=1).on_duplicate_key_update(total=1), True),
    "mysql plain": (mysql.insert(Order).values(id=1), False),
    "a returning is none": (postgresql.insert(Order).values(id=1).returning(Order.id), False),
}


@pytest.mark.parametrize(("statement", "overwrites"), CONFLICTS.values(), ids=CONFLICTS)
def test_what_may_overwrite_is_reported(statement: Any, overwrites: bool) -> None:
    assert values_of(statement).overwrites is overwrites
