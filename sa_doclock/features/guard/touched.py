"""The rows that an UPDATE or DELETE is about to write, and how many it has written.

The guard asks first, so that it can refuse before anything is written.  Another transaction may
bring a row into the WHERE in between.  Nobody else writes rows of a document that is held
ForUpdate: so where the statement has written no more rows than were asked about, it has written
these.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import eq
from typing import Any, Final

from sqlalchemy import Column, ColumnElement, Select, SelectBase, Update, func, inspect, select
from sqlalchemy.orm import LoaderCriteriaOption
from sqlalchemy.sql.visitors import iterate, replacement_traverse

from ...core.sqlalchemy_internals import buffer_rows, options_of
from ...dialects import schema_translation
from .dml_internals import returned_columns, values_of
from .targets import Row, Target, entity_of, is_alias, table_of

_NUMBER: Final = func.count()  # Threads: it is never changed.


def select_touched(statement: Any, target: Target) -> Select[Any]:
    """Return the SELECT of the values that the written rows have in ``target.columns``, each once.

    The last column of its result is the number of the rows.
    """
    rows = select_rows(statement, target, target.columns)
    found, keys = rows.selected_columns, list(statement.table.primary_key)
    if not keys[1:] or not _joins(statement):
        return rows.group_by(*found).add_columns(_number(statement))
    each = rows.add_columns(*(key.label(None) for key in keys)).distinct().subquery()
    values = list(each.c)[: len(found)]
    return _with_options(select(*values, _NUMBER).group_by(*values), statement)


def select_rows(statement: Any, target: Target, columns: Sequence[Any]) -> Select[Any]:
    """Return the SELECT of these columns of the rows of the target that the statement writes."""
    entity, mapper = entity_of(statement), target.mapper
    if entity is None:
        same = table_of(statement) is statement.table
    else:
        same = mapper is not None and entity is mapper.class_ and not target.of_any_kind
        same = same and not _spans_tables(entity)
    rows = select(*columns) if same else _select_of_others(statement, target, columns)
    return _with_options(_where(statement, rows), statement)


def _select_of_others(statement: Any, target: Target, columns: Sequence[Any]) -> Select[Any]:
    """Return the SELECT of rows of a target from the one table that the statement names."""
    own, mapper = statement.table, target.mapper
    element = table_of(statement)

    others: dict[Any, Any] = {}  # aliased: the WHERE may name the same table for another row

    def written(column: Any) -> Any:
        table = column.table
        found = own if table == element else others.setdefault(table, table.alias())
        return found.columns[column.key]

    found = [written(target.column_of(one.key, element)) for one in columns]
    rows = _from_its_class(statement, select(*found))
    for other in others.values():
        rows = rows.where(*map(eq, other.primary_key, own.primary_key))
    if mapper is not None and mapper.single and not target.of_any_kind:
        assert mapper.polymorphic_on is not None
        kinds = [one.polymorphic_identity for one in mapper.self_and_descendants]
        rows = rows.where(written(mapper.polymorphic_on).in_(kinds))
    return rows


def _from_its_class(statement: Any, rows: Select[Any]) -> Select[Any]:
    """Return the SELECT of the statement's class, with what SQLAlchemy adds to a WHERE for that.

    Not of an alias: SQLAlchemy adds conditions for the table beside the alias, and writes more rows.
    """
    entity = entity_of(statement)
    if entity is None or is_alias(entity) or _spans_tables(entity):
        return rows
    return rows.select_from(entity)


def _spans_tables(entity: Any) -> bool:
    """Return whether a SELECT of the class joins others to the one table that a statement names."""
    mapper = inspect(entity).mapper
    return mapper.persist_selectable is not mapper.local_table


def _where(statement: Any, rows: Select[Any]) -> Select[Any]:
    where = statement.whereclause
    if where is None:
        return rows
    foreign = _from_its_class(statement, rows) is rows or _may_join(statement)
    return rows.where(_without_entities(where) if foreign else where)


def _joins(statement: Any) -> bool:
    """Return whether a row may come twice: UPDATE .. FROM writes one that is joined with two once."""
    return _may_join(statement) and len(_written(statement).get_final_froms()) > 1


def _written(statement: Any) -> Select[Any]:
    """Return the SELECT of the keys of the written rows."""
    keys = list(statement.table.primary_key) or list(statement.table.columns)
    return _where(statement, _from_its_class(statement, select(*keys)))


def _number(statement: Any) -> ColumnElement[int]:
    keys = list(statement.table.primary_key)
    return func.count(keys[0].distinct()) if keys and _joins(statement) else _NUMBER


def _with_options(rows: Select[Any], statement: Any) -> Select[Any]:
    """Return the SELECT with the ``with_loader_criteria()`` of a statement that names a class.

    SQLAlchemy adds them to its WHERE, as to that of a SELECT of the same class, and of no other.
    """
    rows = rows.execution_options(**schema_translation(statement.get_execution_options()))
    if entity_of(statement) is None:
        return rows
    options = (one for one in options_of(statement) if isinstance(one, LoaderCriteriaOption))
    return rows.options(*options)


def _without_entities(where: Any) -> Any:
    """Return the WHERE with columns of tables, to which a SELECT adds no criteria of their classes.

    Subqueries stay: what SQLAlchemy adds to them is the same in each statement.
    """

    def replace(element: Any, **_: Any) -> Any:
        if isinstance(element, SelectBase):
            return element
        if isinstance(element, Column) and element.table is not None:
            return element.table.columns.get(element.key)
        return None

    return replacement_traverse(where, {}, replace)


def select_number(statement: Any) -> Select[Any]:
    """Return the SELECT of the number of the rows that the statement writes."""
    keys = list(statement.table.primary_key)
    if not keys[1:] or not _joins(statement):
        number = _written(statement).with_only_columns(
            _number(statement), maintain_column_froms=True
        )
        return _with_options(number, statement)
    each = _written(statement).distinct().subquery()
    return _with_options(select(_NUMBER).select_from(each), statement)


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
