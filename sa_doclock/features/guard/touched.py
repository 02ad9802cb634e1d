"""The rows that an UPDATE or DELETE is about to write, and how many it has written.

The guard asks first, so that it can refuse before anything is written.  Another transaction may
bring a row into the WHERE in between.  Nobody else writes rows of a document that is held
ForUpdate: so where the statement has written no more rows than were asked about, it has written
these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Column, Select, func, select
from sqlalchemy.engine import IteratorResult
from sqlalchemy.sql.visitors import iterate

from ...core.sqlalchemy_internals import buffer_rows, returned_columns
from ...dialects import schema_translation
from .targets import Target, entity_of

_NUMBER: Final = func.count()  # Threads: it is never changed.


def select_touched(statement: Any, columns: Sequence[Any]) -> Select[Any]:
    """Return the SELECT of the values that the written rows have in these columns, each once.

    The last column of its result is the number of the rows.
    """
    options = schema_translation(statement.get_execution_options())
    counted = select(*columns, _NUMBER).group_by(*columns).execution_options(**options)
    if statement.whereclause is None:
        return counted
    if _may_join(statement):
        return _once(statement, columns, counted)
    return counted.where(statement.whereclause)


def _once(statement: Any, columns: Sequence[Any], counted: Select[Any]) -> Select[Any]:
    """Return the same for UPDATE .. FROM: a row that is joined with two others is written once."""
    keys = [key.label(None) for key in statement.table.primary_key]
    rows = select(*columns, *keys).where(statement.whereclause)
    if not keys or len(rows.get_final_froms()) == 1:
        return counted.where(statement.whereclause)
    found = list(rows.distinct().subquery().c)[: len(columns)]
    options = counted.get_execution_options()
    return select(*found, _NUMBER).group_by(*found).execution_options(**options)


def select_number(statement: Any) -> Select[Any]:
    """Return the SELECT of the number of the rows that the statement writes."""
    entity, options = entity_of(statement), schema_translation(statement.get_execution_options())
    source, keys = statement.table if entity is None else entity, statement.table.primary_key
    rows = select(*keys).select_from(source).distinct()
    if statement.whereclause is not None:
        rows = rows.where(statement.whereclause)
    return select(_NUMBER).select_from(rows.subquery()).execution_options(**options)


def _may_join(statement: Any) -> bool:
    """Return whether the WHERE names another table; get_final_froms(), which is sure, takes longer."""
    if statement.whereclause is None:
        return False
    columns = (one for one in iterate(statement.whereclause) if isinstance(one, Column))
    return any(one.table != statement.table for one in columns)


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
