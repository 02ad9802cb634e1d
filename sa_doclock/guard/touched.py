"""The rows that an UPDATE or DELETE is about to write, and how many it has written.

The guard asks first, so that it can refuse before anything is written.  Another transaction may
then bring a row into the WHERE.  No other transaction writes rows of a document that is locked ForUpdate: so
if the statement has written no more rows than were found, it has written these.

If a statement names another Table object for a document's table, its WHERE finds the keys of the
rows, and the mapped Table has their documents.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from operator import eq
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    Alias,
    ClauseElement,
    Column,
    ColumnElement,
    FromClause,
    Label,
    Select,
    SelectBase,
    column,
    func,
    select,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import LoaderCriteriaOption, aliased
from sqlalchemy.orm.exc import UnmappedColumnError
from sqlalchemy.sql.expression import ColumnClause
from sqlalchemy.sql.visitors import iterate, replacement_traverse

from ..core.documents import HeaderResolver, has_null, has_subquery, takes
from ..core.same_tables import column_named
from ..core.statements import chunks, key_in
from ..dml_internals import returned_columns
from ..keys import Identity
from ..sqlalchemy_internals import buffer_rows, options_of
from .targets import Link, Row, Target, Way, Write, is_of_one_table, literal

_NUMBER: Final = func.count()  # Threads: never changed.


class RowHeaders:
    """The headers of the rows of one target: by their stored values, or by those of a write."""

    def __init__(self, target: Target, resolver: HeaderResolver) -> None:
        self.target, self.resolver = target, resolver

    def select(self, key: Sequence[Any], values: Sequence[Identity]) -> Iterator[Select[Any]]:
        """Yield SELECTs of these columns and of ``target.read``, in rows with these values."""
        read = self.target.columns(self.target.read)
        for some in chunks(values):
            yield select(*key, *read).where(key_in(key, some))

    def of_stored(
        self, row: Identity, new: Iterable[Row] = (), *, written: bool = False
    ) -> Iterator[Identity]:
        """Yield the headers of a row of ``target.read``, before and after it gets new values.

        :param written: the session's object of the row does not show them.
        """
        if self.target.by_identity:
            search = self.resolver.stored_headers if written else self.resolver.headers_of_row
            assert self.target.mapper is not None
            yield from search(self.target.mapper, row)
            return
        for link, now in self.target.read_by_link(row):
            if self.target.of_any_kind or takes(link.discriminators, now):
                yield from self.of_owner(link, now)
            for values in new if link.discriminators else ():
                known = {
                    **now,
                    **{name: literal(value, values) for name, value in values.items()},
                }
                if takes(link.discriminators, known):
                    yield from self.of_owner(link, known)

    def of_all(self, rows: Collection[tuple[Identity, Collection[Row]]]) -> Sequence[Identity]:
        """Return the headers of several such rows, each with its new values."""
        return self.resolver.read_together(
            lambda: [header for row, new in rows for header in self.of_stored(row, new)]
        )

    def of_owner(self, link: Link, row: Row) -> Iterator[Identity]:
        """Yield the headers of the owner that a row names."""
        key = tuple(map(row.get, link.names))
        if has_null(key) or any(isinstance(value, ClauseElement) for value in key):
            return
        by_part = link.part
        for owner in [key] if by_part is None else self.resolver.owners_by_reference(by_part, key):
            if link.types:
                self.resolver.note_types(owner, link.types)
            yield from self.resolver.headers_of_row(link.owner, owner)


class TouchedRows(NamedTuple):
    """The rows of one target that an UPDATE or DELETE is about to write."""

    target: Target
    entity: Any  # the source: the class or an alias of it, or an association table
    where: Sequence[ColumnElement[bool]]
    options: Sequence[LoaderCriteriaOption]
    execution_options: Mapping[str, Any]

    def column(self, name: str) -> Any:
        """Return the column that an attribute maps."""
        return self.target.column_of(name, self.entity)

    def select(self, names: Iterable[str], *more: Any) -> Select[Any]:
        """Return the SELECT of these attributes of each row."""
        rows = select(*map(self.column, names), *more).where(*self.where).options(*self.options)
        return rows.execution_options(**self.execution_options)

    def select_counted(self) -> Select[Any]:
        """Return the SELECT of the distinct values of the rows in ``target.read``.

        The last column of its result is the number of rows.
        """
        read = self.target.read
        return self.select(read, _NUMBER).group_by(*map(self.column, read))


def touched_rows(write: Write, target: Target, *, to_lock: bool = False) -> TouchedRows | None:
    """Return the rows of the target that the statement is about to write.

    They are the rows of its own WHERE, where the statement names the one table of the target.  Else they
    are those of the target's classes that have the key of a row of the table which the statement writes.
    None where no SELECT finds them.

    :param to_lock: the SELECT will lock, for which it must name the class.
    """
    statement, criteria = write.statement, criteria_of(write.statement)
    entity = _read_from(write, target)
    if entity is None or write.entity is not entity:
        where = statement.whereclause
        has_others = isinstance(statement.table, Alias) or (
            where is not None and has_subquery(where)
        )
        if criteria and has_others:  # for the table beside an alias, criteria may add rows
            return None
        criteria = []  # they exclude rows
    if entity is None or _joins(write):  # a row may occur twice in such a WHERE
        by_key = not (to_lock and target.of_any_kind)
        return _rows_by_key(write, target, criteria) if by_key else None
    return TouchedRows(
        target,
        entity,
        where_of(statement),
        criteria,
        write.schema_options,
    )


def _rows_by_key(
    write: Write, target: Target, criteria: Sequence[LoaderCriteriaOption]
) -> TouchedRows | None:
    """Return the target's rows that share the key of a row of the written table."""
    mapper, table = target.mapper, write.table
    # An alias: the WHERE may name the same tables for other rows.
    if mapper is None or target.of_any_kind:
        entity = table.alias()
    else:
        entity = aliased(mapper.class_, flat=True)
    key = key_of_table(target, table, entity)
    if not key:
        return None
    written = _keys_written(write, [table.columns[name] for name in key]).subquery()
    where = [*map(eq, key.values(), written.columns)]
    return TouchedRows(target, entity, where, criteria, write.schema_options)


def _read_from(write: Write, target: Target) -> Any:
    """Return the class or table of which the statement's own WHERE finds the rows; None if there is none."""
    mapper, named = target.mapper, write.mapper
    if write.source is not write.table:
        return None
    if mapper is None:
        return write.table
    if named is None:
        found = mapper.selectable is write.table
    else:
        found = is_of_one_table(mapper) and mapper.isa(named)
    return mapper.class_ if found or target.of_any_kind else None


def key_of_table(target: Target, table: Any, entity: Any) -> Mapping[str, Any]:
    """Return the columns of the target that form the table's key, by their names there.

    Empty if the table has no key, or the class does not map it.
    """
    mapper = target.mapper
    if mapper is None or isinstance(entity, FromClause):
        return {own.key: entity.columns[own.key] for own in table.primary_key}
    key: Sequence[Any] = list(table.primary_key) or mapper.primary_key
    try:
        return {own.key: getattr(entity, mapper.get_property_by_column(own).key) for own in key}
    except UnmappedColumnError:
        return {}


def criteria_of(statement: Any) -> list[LoaderCriteriaOption]:
    """Return the ``with_loader_criteria()`` of a statement.

    SQLAlchemy adds them to its WHERE, as it does for a SELECT of the same class, and to subqueries.
    """
    return [option for option in options_of(statement) if isinstance(option, LoaderCriteriaOption)]


def where_of(statement: Any) -> Sequence[ColumnElement[bool]]:
    """Return the WHERE of a statement with columns of tables instead of those of classes.

    For a SELECT, SQLAlchemy adds the conditions of every class that the WHERE names, but not for an
    UPDATE or DELETE.  Subqueries stay: each statement treats them alike.
    """

    def replaced(element: Any, **_: Any) -> Any:
        if isinstance(element, SelectBase):
            return element
        if isinstance(element, Label):  # a column_property()
            return replacement_traverse(element.element, {}, replaced)
        is_column = isinstance(element, Column) and element.table is not None
        return element.table.columns.get(element.key) if is_column else None

    where = statement.whereclause
    return () if where is None else (replacement_traverse(where, {}, replaced),)


def _keys_written(write: Write, key: Iterable[Any]) -> Select[Any]:
    """Return the SELECT of the distinct keys of the written rows.

    For a class of several tables, it reads the class's own table: a SELECT of the class would join
    the others, which the statement does not.

    :param key: columns of the mapped Table.
    """
    named = write.source
    mapper = None if isinstance(named, Alias) else write.mapper
    alone = mapper is not None and is_of_one_table(mapper)
    columns = []
    for own in key:
        found = column_named(named, own.name)
        if found is None:  # a table() that names only some columns
            found = column(own.name)
            found.table = named
        columns.append(found)
    source = write.entity if alone else named
    return select(*columns).select_from(source).where(*where_of(write.statement)).distinct()


def select_number(write: Write) -> Select[Any]:
    """Return the SELECT of the number of rows that the statement writes."""
    rows = _keys_written(write, write.table.primary_key).subquery()
    number = select(_NUMBER).select_from(rows).options(*criteria_of(write.statement))
    return number.execution_options(**write.schema_options)


def _joins(write: Write) -> bool:
    """Return whether the statement joins other tables: UPDATE .. FROM."""
    where, table = write.statement.whereclause, write.source
    columns = (
        ()
        if where is None
        else (element for element in iterate(where) if isinstance(element, Column))
    )
    if all(other.table == table for other in columns):
        return False
    rows = select(*table.primary_key).where(*where_of(write.statement))  # certain, but slower
    return len(rows.get_final_froms()) > 1


def covers(target: Target, write: Write) -> bool:
    """Return whether every row that the statement can write belongs to the target."""
    named, mapper = write.mapper, target.mapper
    if mapper is None:
        return True
    if named is not None and is_of_one_table(mapper):
        return mapper is named
    return mapper.local_table is write.table and not mapper.single


def brings_into_its_where(write: Write, target: Target) -> bool:
    """Return whether an UPDATE for one parameter set may bring rows into the WHERE of another.

    Such a row was counted before, and is written more than once.
    """
    where = write.statement.whereclause
    if not write.given[1:] or where is None or write.way is not Way.UPDATE:
        return False
    names = chain(*write.values.rows, *write.given)
    on_update = (other for other in write.source.columns if other.onupdate is not None)
    changed = {target.attribute_of(name) for name in chain(names, on_update)}
    columns = (element for element in iterate(where) if isinstance(element, ColumnClause))
    return not changed.isdisjoint(map(target.attribute_of, columns))


def rows_written(statement: Any, result: Any) -> tuple[Any, int | None]:
    """Return the result, which stays readable, and the number of written rows.

    None if the driver does not report it, as for a list of parameters.
    """
    if returned_columns(statement):
        return result, len(buffer_rows(result))
    return result, row_count(result)


def row_count(result: Any) -> int | None:
    """Return the driver's count of written rows, or None."""
    count = -1
    with suppress(DBAPIError):  # a driver that forgets it with the cursor
        count = getattr(result, "rowcount", -1)
    return None if count < 0 else count
