"""The rows of a result that were looked at are still in it; and who maps a table.

The names are ``cursor_fetch_strategy`` of the context and ``cursor_strategy`` of the result, which
have no underscore and are not documented, and ``_all_registries``.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from sa_doclock.sqlalchemy_internals import all_mappers, buffer_rows, keep_rows
from tests.support.models import Order


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
            assert rows[0].date.year > 2000  # as the type of the column makes it
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
