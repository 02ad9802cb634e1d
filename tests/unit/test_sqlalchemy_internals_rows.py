"""Reading ahead leaves the rows in the result; and the registries list the classes of a table.

The names are ``cursor_fetch_strategy`` of the context and ``cursor_strategy`` of the result, which
have no underscore and are not documented, and ``_all_registries``.
"""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import BigInteger, BindParameter, Integer
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import ChunkedIteratorResult
from sqlalchemy.orm import selectinload
from sqlalchemy.orm.attributes import instance_state

from sa_doclock import LockingSession
from sa_doclock.dml_internals import Values, merged_results, run_before, run_of, values_of
from sa_doclock.sqlalchemy_internals import all_mappers, buffer_rows, keep_rows, variants_of
from tests.support.models import Line, Order
from tests.support.rows import rows


def test_rows_that_were_looked_at_are_still_in_the_result() -> None:
    engine = sa.create_engine("sqlite://")
    seen: list[Any] = []

    @sa.event.listens_for(engine, "after_cursor_execute")
    def look(_c: object, cursor: Any, _s: str, _p: object, context: Any, _m: bool) -> None:
        seen.append(keep_rows(context, cursor))

    numbers = sa.text("SELECT 1 AS a UNION SELECT 2 ORDER BY 1").columns(sa.column("a", sa.Integer))
    with engine.connect() as connection:
        assert connection.scalars(numbers).all() == [1, 2]
        streamed = connection.execution_options(stream_results=True).execute(numbers)
        assert streamed.scalars().all() == [1, 2]
    assert [[tuple(row) for row in rows or ()] for rows in seen] == [[(1,), (2,)], []]
    engine.dispose()


def test_rows_of_a_cursor_are_buffered_and_stay_in_it() -> None:
    engine = sa.create_engine("sqlite://")
    date = sa.func.current_date().label("date")
    with engine.connect() as connection:
        for left in ("all", "fetchall"):
            result: Any = connection.execute(sa.select(date, sa.literal(1)))
            rows = buffer_rows(result)
            assert rows[0].date.year > 2000  # as the column type returns it
            assert getattr(result, left)() == rows
            assert result.fetchone() is None
            assert not result.closed
        result = connection.execute(sa.select(date))
        buffer_rows(result)
        result.close()
        assert result.closed
    engine.dispose()


def test_the_mappers_of_all_classes_are_known() -> None:
    assert sa.inspect(Order) in set(all_mappers())


# --------------------------------------------------------------------------------------------------
# The names that sqlalchemy_internals.py uses to find the execution that loaded an object.
#
# It reads ``loading._new_runid``, ``context`` of a Result (since SQLAlchemy 2.1), ``_real_result`` of
# a ScalarResult, ``_results`` of a MergedResult, and two undocumented names without an underscore: ``InstanceState.runid``, and
# ``raw`` of a Result.


def bounds(above: int, result: Any) -> tuple[int, int]:
    last = run_of(result)
    return (above or last - 1), last


def run_of_object(thing: object) -> int:
    run = instance_state(thing).runid
    assert run is not None
    return run


def test_a_result_tells_the_number_of_its_objects(session: LockingSession) -> None:
    above = run_before()
    result = session.execute(sa.select(Order))
    above, last = bounds(above, result)
    assert all(above < run_of_object(order) <= last for order in result.scalars())
    above = run_before()
    above, last = bounds(above, session.execute(sa.select(Order).where(Order.id == 1)))
    assert not above < run_of_object(session.get_one(Order, 2)) <= last


def test_what_is_loaded_with_them_has_another_number(session: LockingSession) -> None:
    above = run_before()
    result = session.execute(sa.select(Order).options(selectinload(Order.lines)))
    above, last = bounds(above, result)
    orders = result.scalars().all()
    assert not any(above < run_of_object(line) <= last for one in orders for line in one.lines)


def test_what_is_loaded_in_part_keeps_its_number(session: LockingSession) -> None:
    order = session.get_one(Order, 1)
    run = run_of_object(order)
    session.expire(order)
    assert session.scalars(sa.select(Order).where(Order.id == 1)).one() is order
    assert "total" in sa.inspect(order).dict
    assert run_of_object(order) == run  # so that a listener for "refresh" records the new value


def test_results_of_objects_have_a_type_of_their_own_and_their_sql(session: LockingSession) -> None:
    result: Any = session.execute(sa.select(Order))
    assert result.raw.context.compiled.string.startswith("SELECT lk_order.id")
    assert type(result) is ChunkedIteratorResult
    assert type(session.execute(sa.select(Order.__table__))) is not ChunkedIteratorResult


def test_merged_results_know_theirs(session: LockingSession) -> None:
    both = session.execute(sa.select(Order)), session.execute(sa.select(Line))
    assert merged_results(both[0].merge(both[1])) == both


# --------------------------------------------------------------------------------------------------
# The private name of a type that sqlalchemy_internals.py reads: ``_variant_mapping``.


def test_the_variants_of_a_type_are_reported() -> None:
    unsigned, small = mysql.BIGINT(unsigned=True), Integer()
    type_ = BigInteger().with_variant(unsigned, "mysql", "mariadb").with_variant(small, "sqlite")
    assert variants_of(type_) == (unsigned, unsigned, small)


def test_most_types_have_none() -> None:
    assert variants_of(Integer()) == ()


# --------------------------------------------------------------------------------------------------
# The private names of INSERT and UPDATE that sqlalchemy_internals.py reads keep their meaning.
#
# It reads ``_values``, ``_ordered_values`` (2.0), ``_multi_values``, ``select``,
# ``_post_values_clause`` and the names of its classes.

LINES: Any = Line.__table__
POSITIONS = [column.key for column in LINES.columns]


def plain(values: Values) -> list[dict[str, Any]]:
    """Return the rows by column name, with the bound values of their parameters."""
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
