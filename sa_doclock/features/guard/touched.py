"""The rows that an UPDATE or DELETE is about to write, and how many it has written.

The guard asks first, so that it can refuse before anything is written.  Another transaction may
bring a row into the WHERE in between.  Nobody else writes rows of a document that is held
ForUpdate: so where the statement has written no more rows than were asked about, it has written
these.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

from sqlalchemy import Column, Select, Update, func, inspect, select
from sqlalchemy.orm import LoaderCriteriaOption, Mapper
from sqlalchemy.sql.visitors import iterate

from ...core.sqlalchemy_internals import buffer_rows, options_of
from ...dialects import schema_translation
from .dml_internals import returned_columns, values_of
from .targets import Row, Target, entity_of

_NUMBER: Final = func.count()  # Threads: it is never changed.


def select_touched(statement: Any, target: Target) -> Select[Any]:
    """Return the SELECT of the values that the written rows have in ``target.columns``, each once.

    The last column of its result is the number of the rows.
    """
    columns = _columns_written(statement, target.columns)
    options = schema_translation(statement.get_execution_options())
    counted = select(*columns, _NUMBER).group_by(*columns).execution_options(**options)
    counted = counted.options(*criteria_of(statement, target.mapper))
    if statement.whereclause is None:
        return counted
    if _may_join(statement):
        return _once(statement, columns, counted)
    return counted.where(statement.whereclause)


def criteria_of(statement: Any, mapper: Mapper[Any] | None) -> list[LoaderCriteriaOption]:
    """Return the ``with_loader_criteria()`` of a statement that writes the rows of this class.

    SQLAlchemy adds them to its WHERE, as to that of a SELECT of the same class, and of no other.
    """
    if mapper is None or entity_of(statement) is not mapper.class_:
        return []
    return [one for one in options_of(statement) if isinstance(one, LoaderCriteriaOption)]


def _columns_written(statement: Any, columns: Sequence[Any]) -> Sequence[Any]:
    """Return the columns of the alias, where the statement names an ``aliased()`` class."""
    entity = entity_of(statement)
    alias = None if entity is None else inspect(entity)
    if not getattr(alias, "is_aliased_class", False):
        return columns
    return [getattr(entity, one.key) for one in columns]


def _once(statement: Any, columns: Sequence[Any], counted: Select[Any]) -> Select[Any]:
    """Return the same for UPDATE .. FROM: a row that is joined with two others is written once."""
    keys = [key.label(None) for key in statement.table.primary_key]
    rows = select(*columns, *keys).where(statement.whereclause)
    if not keys or len(rows.get_final_froms()) == 1:
        return counted.where(statement.whereclause)
    found = list(rows.distinct().subquery().c)[: len(columns)]
    once = select(*found, _NUMBER).group_by(*found).options(*options_of(counted))
    return once.execution_options(**counted.get_execution_options())


def select_number(statement: Any) -> Select[Any]:
    """Return the SELECT of the number of the rows that the statement writes."""
    entity, options = entity_of(statement), schema_translation(statement.get_execution_options())
    source, keys = statement.table if entity is None else entity, statement.table.primary_key
    rows = select(*keys).select_from(source).distinct()
    if statement.whereclause is not None:
        rows = rows.where(statement.whereclause)
    number = select(_NUMBER).select_from(rows.subquery()).execution_options(**options)
    mapper = None if entity is None else inspect(entity).mapper
    return number.options(*criteria_of(statement, mapper))


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


def brings_into_its_where(statement: Any, target: Target, given: Sequence[Row]) -> bool:
    """Return whether an UPDATE for one of the parameters may bring rows into the WHERE for another.

    Such a row was asked about before, and is written more than once.
    """
    if not given[1:] or statement.whereclause is None or not isinstance(statement, Update):
        return False
    names = chain(*values_of(statement).rows, *given)
    on_update = (one for one in statement.table.columns if one.onupdate is not None)
    changed = {target.attribute_of(one) for one in chain(names, on_update)}
    columns = (one for one in iterate(statement.whereclause) if isinstance(one, Column))
    return not changed.isdisjoint(map(target.attribute_of, columns))


def rows_written(statement: Any, result: Any) -> tuple[Any, int | None]:
    """Return the result, which can still be read, and how many rows were written.

    None where the driver does not tell, as of a list of parameters.
    """
    if not returned_columns(statement):
        count = getattr(result, "rowcount", -1)
        return result, None if count < 0 else count
    return result, len(buffer_rows(result))
