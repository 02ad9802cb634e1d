"""The rows that an UPDATE or DELETE is about to write, and how many it has written.

The guard asks first, so that it can refuse before anything is written.  Another transaction may
bring a row into the WHERE in between.  Nobody else writes rows of a document that is held
ForUpdate: so where the statement has written no more rows than were asked about, it has written
these.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.engine import IteratorResult

from ...core.sqlalchemy_internals import buffer_rows, returned_columns
from ...dialects import schema_translation
from .targets import Target, entity_of


def select_touched(statement: Any, columns: Iterable[Any]) -> Select[Any]:
    """Return the SELECT of the values that the written rows have in these columns, each once.

    The last column of its result is the number of the rows.
    """
    return _counted(statement, list(columns), select(*columns))


def select_number(statement: Any) -> Select[Any]:
    """Return the SELECT of the number of the rows that the statement writes."""
    entity = entity_of(statement)
    return _counted(
        statement, [], select().select_from(statement.table if entity is None else entity)
    )


def _counted(statement: Any, columns: list[Any], rows: Select[Any]) -> Select[Any]:
    options = schema_translation(statement.get_execution_options())
    if statement.whereclause is not None:
        rows = rows.where(statement.whereclause)
    keys = list(statement.table.primary_key)
    if len(rows.add_columns(*keys[:1]).get_final_froms()) > 1 and keys:
        # UPDATE .. FROM: a row that is joined with two others is written once.
        inner = rows.add_columns(*(key.label(None) for key in keys)).distinct().subquery()
        columns = list(inner.c)[: len(columns)]
        rows = select(*columns).select_from(inner)
    counted = rows.add_columns(func.count()).group_by(*columns)
    return counted.execution_options(**options)


def covers(target: Target, statement: Any) -> bool:
    """Return whether every row that the statement can write is one of the target's."""
    if target.mapper is None:
        return True
    entity = entity_of(statement)
    if entity is not None and target.mapper.class_ is entity:
        return True
    return target.mapper.local_table is statement.table and not target.mapper.single


def rows_written(statement: Any, result: Any) -> tuple[Any, int | None]:
    """Return the result, which can still be read, and how many rows were written.

    None where the driver does not tell, as of a list of parameters.
    """
    if not returned_columns(statement):
        count = getattr(result, "rowcount", -1)
        return result, None if count < 0 else count
    if isinstance(result, IteratorResult):  # of objects, or of their attributes
        return result, len(buffer_rows(result))
    frozen = result.freeze()
    return frozen(), len(frozen().all())
