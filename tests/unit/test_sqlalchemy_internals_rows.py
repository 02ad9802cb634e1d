"""The rows of a result that were looked at are still in it: ``cursor_fetch_strategy`` of its context.

The name has no underscore, and is not documented.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from sa_doclock.core.sqlalchemy_internals import keep_rows


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
