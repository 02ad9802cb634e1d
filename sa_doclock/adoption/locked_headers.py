"""The headers that the program's ``with_for_update()`` locks, and their places in its rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from operator import attrgetter
from typing import Any, Final, NamedTuple

from sqlalchemy import Label, Select, Table, TextClause, inspect, or_, select
from sqlalchemy.orm import Bundle, FromStatement, Mapper
from sqlalchemy.sql.expression import ColumnClause
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.visitors import iterate

from ..core.documents import (
    compared_with_constants,
    declared_roots,
    from_clauses_within,
    header_table,
    key_attributes,
    key_columns,
    mapper_cache,
    mapper_of,
    own_table,
    root_of,
    tables_of,
    unread_columns,
)
from ..core.same_tables import folded_name, may_be_same, same_attribute
from ..core.statements import key_not_in, refuse_combined_rows, statement_cache
from ..dialects.base import Locked, LockStatements, Reach, is_in_index, read_beside
from ..errors import LockNotSupported
from ..keys import DocumentKey, Identity
from ..options import LockOptions, base_of
from ..sqlalchemy_internals import all_mappers, for_update_tables, options_of, reads_only_some
from .for_update import (
    base_of_from,
    inner_select,
    is_key_share,
    is_subquery,
    locked_froms,
    with_inner_select,
)

_NO_ROWS: Final = (
    "a SELECT of functions alone may lock entries of an index instead of rows on this database. "
    "Select the mapped class"
)
_BY_INDEX: Final = (
    "this database may lock entries of an index of {!r} instead of its rows: an index covers all columns of "
    "the table, or the SELECT does not list them all. Lock by session.get_entity() or session.entity_set()"
)

Statement = Select[Any] | FromStatement[Any]
_Unread = tuple[Mapper[Any], bool, Iterable[Any]]
"""A root; whether objects or keys are read; and the unread columns of its table."""


class KeyPlaces(NamedTuple):
    """The places in a row of the columns that form the whole key of a header.

    :ivar root: the root of the header's hierarchy.
    :ivar places: where each of them is, down into a Bundle.
    :ivar width: the number of columns of a row.
    :ivar other: the statement's Table object if it is not the root's; it may be another table of
        the same name.
    """

    root: Mapper[Any]
    places: Sequence[tuple[int, ...]]
    width: int
    other: Any = None


class Adopted(NamedTuple):
    """The headers that a statement locks.

    :ivar mapper: of the first locked class; None: it locks only rows of tables.
    :ivar roots: the roots of the locked classes.
    :ivar returned: the roots of returned objects.
    :ivar places: the places of their objects in a row.
    :ivar keys: the keys whose columns are all selected.
    :ivar objects: the places of all objects in a row.
    """

    mapper: Mapper[Any] | None
    roots: frozenset[Mapper[Any]]
    returned: frozenset[Mapper[Any]]
    places: Sequence[int]
    keys: Sequence[KeyPlaces]
    objects: Sequence[int]


class ReadBeside(NamedTuple):
    """Additions that a statement needs to lock rows on a database that locks what the plan reads.

    :ivar columns: additional columns to read.
    :ivar by_key: it must find its row by the whole key, and by no other index.
    """

    columns: Sequence[Any]
    by_key: bool


class _Selected(NamedTuple):
    """An item that a statement selects, at one place of its rows.

    :ivar place: the place; for a member of a Bundle, the path of places to it.
    :ivar entity: its class or alias; None for columns of tables.
    """

    place: tuple[int, ...]
    expression: Any
    entity: Any | None


def _selected_by(statement: Statement) -> list[_Selected]:
    return [*_selected(statement.column_descriptions, ())]


def _selected(described: Iterable[Any], above: tuple[int, ...]) -> Iterator[_Selected]:
    for place, column in enumerate(described):
        expression, here = column["expr"], (*above, place)
        if type(expression) is not Bundle:  # a subclass may change its columns
            yield _Selected(here, expression, column.get("entity"))
        elif not expression.single_entity:
            yield from _selected(select(*expression.exprs).column_descriptions, here)


@statement_cache
def adopted_by(statement: Statement) -> Adopted:
    """Return the tables that the statement's ``with_for_update()`` locks."""
    selected, entities = _selected_by(statement), _locked_entities(statement)
    locked = {id(entity) for entity in entities}
    objects = [item for item in selected if item.expression is item.entity is not None]
    returned = [item for item in objects if id(item.entity) in locked]
    keys = [key for key, _ in _keys_of(statement, selected, entities)]
    mappers: list[Mapper[Any]] = [inspect(entity).mapper for entity in entities]
    return Adopted(
        next(iter(mappers), None),
        frozenset(map(root_of, mappers)),
        frozenset(root_of(inspect(item.entity).mapper) for item in returned),
        [item.place[0] for item in returned],
        keys,
        [item.place[0] for item in objects],
    )


def froms_returned(statement: Statement) -> AbstractSet[Any]:
    """Return the FROM clauses whose rows the statement returns, as objects with a locked header or by their keys."""
    selected, entities = _selected_by(statement), _locked_entities(statement)
    froms = {froms for _, froms in _keys_of(statement, selected, entities)}
    for item in selected:
        if item.expression is item.entity in entities:
            froms.update(tables_of(item.entity))
    return froms


@statement_cache
def check_headers(
    statement: Statement, statements: LockStatements, lock: LockOptions
) -> frozenset[tuple[Mapper[Any], bool]]:
    """Check that the rows of the classes that the statement locks are in locked tables.

    :param statements: of the database.
    :returns: the roots whose rows may still be unlocked, because the lock may cover only entries of
        an index: with True for objects of the class, with False for their keys.
    :raises LockNotSupported: a class is read from a subquery or CTE, whose rows are not locked.
    """
    for entity in _locked_entities(statement):
        if not (Reach.SUBQUERIES in statements.reach and is_subquery(inspect(entity).selectable)):
            header_table(entity)
    shared = base_of(lock) is LockOptions.SharedRead
    in_index = shared and statements.locked is Locked.SHARED_ENTRIES
    return _roots_in_index(statement) if in_index else frozenset()


def columns_beside(
    statement: Statement, tables: Iterable[Any], statements: LockStatements
) -> ReadBeside:
    """Return the additions that the statement needs to lock the rows of these tables.

    :param tables: the locked tables, or their aliases.
    :param statements: of a database that locks the rows that a plan reads.
    :raises LockNotSupported: it may lock none of their rows, whatever it reads.
    """
    select = inner_select(statement)
    refuse_combined_rows(select)
    read = _columns_read(statement)
    # joinedload() creates a new alias each time, which has no hint either.
    there = {*from_clauses_within(select.get_final_froms())}
    beside = ReadBeside((), by_key=False)
    for table in [candidate for candidate in tables if candidate in there]:
        unread = _unread_of(table, read, statements)
        by_key = unread is None and _is_by_key_of(select, base_of_from(table))
        if unread is None and not by_key:
            raise LockNotSupported(_BY_INDEX.format(base_of_from(table).name))
        beside = ReadBeside([*beside.columns, *(unread or ())], beside.by_key or by_key)
    return beside


def _unread_of(
    table: Any, read: AbstractSet[Any], statements: LockStatements
) -> Sequence[Any] | None:
    """Return the columns to add for a lock on the table; None: no column locks a row."""
    base = base_of_from(table)
    mapped = next((root.local_table for root in _roots_of_table(base)), base)
    key = {column.name for column in mapped.primary_key}  # every index contains it
    unread = [
        candidate
        for candidate in table.columns
        if candidate not in read and candidate.name not in key
    ]
    if not isinstance(mapped, Table):
        return unread
    unknown = {column.name for column in mapped.columns}.difference(
        column.name for column in table.columns
    )
    found = read_beside(statements, LockOptions.ForUpdate, mapped, unread)
    return None if unknown else found


def _columns_read(statement: Statement) -> AbstractSet[Any]:
    """Return the columns that the statement certainly reads.

    :raises LockNotSupported: its rows may be aggregates of several rows.
    """
    select = inner_select(statement)
    selected = _selected_by(select)
    columns = [_column_of(item.expression) for item in selected]
    _refuse_combined(selected, columns)
    # A loader option may exclude columns; the class of from_statement() reads the columns present.
    whole = not (options_of(select) or reads_only_some(select)) and select is statement
    read = {*columns} - {None}
    for item in selected if whole else ():
        if item.expression is item.entity is not None:
            read.update(_columns_of_entity(item.entity))
    return read


def _refuse_combined(selected: Iterable[_Selected], columns: Iterable[Any]) -> None:
    """:raises LockNotSupported: it selects no column of a table, and an expression may be an aggregate."""
    if any(getattr(column, "table", None) is not None for column in columns):
        return
    expressions = [item.expression for item in selected if item.expression is not item.entity]
    for element in chain.from_iterable(map(iterate, expressions)):
        of_many = isinstance(element, (FunctionElement, TextClause))
        if of_many or getattr(element, "is_literal", False):
            raise LockNotSupported(_NO_ROWS)


def _columns_of_entity(entity: Any) -> Iterator[Any]:
    mapper = inspect(entity).mapper
    read = {column for attr in mapper.column_attrs if not attr.deferred for column in attr.columns}
    for table in tables_of(entity):
        base = base_of_from(table)
        own = base.columns if isinstance(base, Table) else ()
        yield from (table.columns[attr.key] for attr in own if attr in read)


def without_documents(
    statement: Statement, documents: Collection[DocumentKey], most: int
) -> Statement | None:
    """Return the statement without the rows of these documents; None if it cannot exclude them.

    :param most: the maximum number of parameters for their keys.
    """
    select = inner_select(statement)
    by_entity: dict[type[Any], list[Identity]] = {}
    for entity, identity in documents:
        by_entity.setdefault(entity, []).append(identity)
    told, left = set[type[Any]](), []
    for root, columns in _keys_selected(select):
        keys = by_entity.get(root.class_, [])
        most -= len(keys) * len(columns)
        told.add(root.class_)
        if keys:  # an outer join returns NULL for a missing row
            left.append(or_(columns[0].is_(None), key_not_in(columns, keys)))
    if most < 0 or not told.issuperset(by_entity):
        return None
    without: Statement = with_inner_select(statement, select.where(*left))
    return without


def _keys_selected(select: Select[Any]) -> Iterator[tuple[Mapper[Any], Sequence[Any]]]:
    """Yield the root of each header that the SELECT locks and returns, with the columns of its key."""
    adopted, described = (
        adopted_by(select),
        [description["expr"] for description in select.column_descriptions],
    )
    for place in adopted.places:
        yield root_of(inspect(described[place]).mapper), key_columns(described[place])
    columns = {item.place: _column_of(item.expression) for item in _selected_by(select)}
    for key in adopted.keys:
        yield key.root, [columns[place] for place in key.places]


def _roots_in_index(statement: Statement) -> frozenset[tuple[Mapper[Any], bool]]:
    found: list[_Unread] = []
    has_options = bool(options_of(inner_select(statement)))  # they may exclude columns
    for entity in _locked_entities(statement):
        unread = header_table(entity).columns if has_options else unread_columns(entity)
        found.append((root_of(inspect(entity).mapper), True, unread))
    found += _unread_of_keys(statement)
    return frozenset(
        (root, is_object)
        for root, is_object, unread in found
        if is_in_index(own_table(root), unread)
        # By its whole key, the server finds the row in the primary index.
        and not _is_by_key_of(inner_select(statement), own_table(root))
    )


def _unread_of_keys(statement: Statement) -> Iterator[_Unread]:
    columns = {item.place: _column_of(item.expression) for item in _selected_by(statement)}
    for key in adopted_by(statement).keys:
        table = getattr(columns[key.places[0]], "table", None)
        read = {
            column.name
            for column in columns.values()
            if column is not None and column.table == table
        }
        own = own_table(key.root).columns
        yield key.root, False, [column for column in own if column.name not in read]


def _is_by_key_of(select: Select[Any], table: Any) -> bool:
    froms = [*from_clauses_within(select.get_final_froms())]
    if len(froms) > 1 or select.whereclause is None:
        return False
    given = {_base_of(column) for column, _ in compared_with_constants(select.whereclause)}
    read = {
        _base_of(element)
        for element in iterate(select.whereclause)
        if isinstance(element, ColumnClause)
    }
    return given == read == {*getattr(table, "primary_key", ())}


def _locked_entities(statement: Statement) -> list[Any]:
    """Return the classes and aliases whose header rows the statement locks.

    Empty for ``FOR KEY SHARE``, which protects no document.
    """
    select = inner_select(statement)
    if is_key_share(select):
        return []
    named = for_update_tables(select)
    if select is not statement and not named:  # it may load a class from other columns
        named = [*select.get_final_froms()]
    of = {*from_clauses_within(named)}
    entities = {
        id(item.entity): item.entity for item in _selected_by(statement) if item.entity is not None
    }
    if not of:
        return [*entities.values()]
    # of= names the table of the header, or its subquery.
    return [
        entity
        for entity in entities.values()
        if (
            inspect(entity).selectable if of.isdisjoint(tables_of(entity)) else header_table(entity)
        )
        in of
    ]


def _keys_of(
    statement: Statement, selected: Sequence[_Selected], entities: Iterable[Any]
) -> Iterator[tuple[KeyPlaces, Any]]:
    """Yield the keys whose columns are all selected, each with the FROM clause of its row."""
    width = len(statement.column_descriptions)
    for entity in entities:
        mapper: Mapper[Any] = inspect(entity).mapper
        places = {
            same_attribute(mapper, base): item.place
            for item in selected
            if item.entity is entity
            and (column := _column_of(item.expression)) is not None
            and (base := _base_of(column)) is not None
        }
        root = root_of(mapper)
        for key in _whole(root, key_attributes(root), places, width):
            yield from ((key, table) for table in tables_of(entity))
    if isinstance(statement, Select) and not is_key_share(statement):
        yield from _keys_of_tables(statement, selected, width)


def _keys_of_tables(
    statement: Select[Any], selected: Sequence[_Selected], width: int
) -> Iterator[tuple[KeyPlaces, Any]]:
    """Yield the keys of locked tables whose columns are all selected.

    Attributes of a class do not count.
    """
    by_table: dict[Any, dict[Any, tuple[int, ...]]] = {}
    for item in selected:
        column = _column_of(item.expression) if item.entity is None else None
        if column is not None and column.table is not None:
            name = getattr(_base_of(column), "name", None)
            by_table.setdefault(column.table, {})[name] = item.place
    locked = {*locked_froms(statement).tables} if by_table else ()
    for table in by_table.keys() & locked:
        base = base_of_from(table)
        for root in _roots_of_table(base):
            names = [each.name for each in root.primary_key]
            other = None if root.local_table is base else base
            for key in _whole(root, names, by_table[table], width):
                yield key._replace(other=other), table


@mapper_cache
def _roots_of_table(table: Any) -> tuple[Mapper[Any], ...]:
    """Return the roots of the classes that have their header rows in this table.

    If several hierarchies map it, these are the declared ones, or all of them if none is.  If the
    Table object is not the mapped one, they are found by its name.
    """
    roots = [mapper for mapper in all_mappers() if root_of(mapper) is mapper]
    declared = set(declared_roots())
    same = [root for root in roots if root.local_table is table]
    found = [*filter(declared.__contains__, same)] or same
    if declared.isdisjoint(found):
        named = [
            root for root in roots if root not in same and may_be_same(root.local_table, table)
        ]
        found = [*found, *filter(declared.__contains__, named)] or named
    classes = map(attrgetter("class_"), found)
    return tuple(map(mapper_of, sorted(classes, key=attrgetter("__module__", "__qualname__"))))


@mapper_cache
def declared_on_same_table(mapper: Mapper[Any]) -> tuple[KeyPlaces, ...]:
    """Return the declared headers that may be in the table of a class with another Table object for it.

    Each has the places of its key in the primary key of the class.
    """
    names = {column.name: (place,) for place, column in enumerate(mapper.primary_key)}
    found = []
    for root in declared_roots():
        own = root.local_table
        others = [table for table in mapper.tables if table is not own and may_be_same(table, own)]
        if others and own not in mapper.tables:
            keys = _whole(root, [column.name for column in root.primary_key], names, len(names))
            found += [key._replace(other=others[0]) for key in keys]
    return tuple(found)


@mapper_cache
def roots_with_tables(names: frozenset[str]) -> tuple[Mapper[Any], ...]:
    """Return the roots of the classes that may have columns in tables with these names.

    Declared documents come first: they alone know which of their parts no access loads.
    """
    found = dict.fromkeys(
        root_of(mapper)
        for mapper in all_mappers()
        if not names.isdisjoint(map(folded_name, mapper.tables))
    )
    return tuple(sorted(found, key=frozenset(declared_roots()).__contains__, reverse=True))


def _whole(
    root: Mapper[Any], key: Iterable[Any], places: Mapping[Any, tuple[int, ...]], width: int
) -> Iterator[KeyPlaces]:
    found = [places.get(column) for column in key]
    whole = [place for place in found if place is not None]
    if len(whole) == len(found):
        yield KeyPlaces(root, whole, width)


def _column_of(expression: Any) -> Any | None:
    """Return the selected column, without its label; None for any other expression."""
    column = getattr(inspect(expression, raiseerr=False), "expression", None)
    while isinstance(column, Label):
        column = column.element
    return column if isinstance(column, ColumnClause) else None


def _base_of(column: Any) -> Any | None:
    bases = column.base_columns
    return next(iter(bases)) if len(bases) == 1 else None
