"""The headers that the program's own ``with_for_update()`` locks, and their places in its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

from sqlalchemy import Alias, Label, Select, Subquery, Table, inspect
from sqlalchemy.orm import FromStatement, Mapper
from sqlalchemy.sql.expression import ColumnClause

from ...core.documents import (
    from_clauses_within,
    header_table,
    key_attributes,
    root_of,
    tables_of,
    tables_within,
)
from ...core.sqlalchemy_internals import for_update_of, for_update_tables
from ...core.statements import statement_cache
from ...dialects.base import LockStatements
from ...errors import LockNotSupported
from .for_update import inner_select
from .tables import roots_of_table

Statement = Select[Any] | FromStatement[Any]

_NO_TABLE: Final = (
    "FOR UPDATE locks rows of the tables that a SELECT reads by itself, and none of a subquery or "
    "CTE; select from the table, or from the mapped class"
)


class KeyPlaces(NamedTuple):
    """The places in a row of the columns that are the whole key of a header.

    :ivar root: the root of the hierarchy that has the header.
    :ivar width: the number of columns of a row.
    """

    root: Mapper[Any]
    places: Sequence[int]
    width: int


class Adopted(NamedTuple):
    """The headers that a statement locks.

    :ivar mapper: of the first locked class; None: rows of tables alone are locked.
    :ivar roots: the roots of the locked classes.
    :ivar places: the places in a row of their objects.
    :ivar keys: the keys that are whole among the selected columns.
    """

    mapper: Mapper[Any] | None
    roots: frozenset[Mapper[Any]]
    places: Sequence[int]
    keys: Sequence[KeyPlaces]


@statement_cache
def adopted_by(statement: Statement) -> Adopted:
    """Return what the statement locks by its ``with_for_update()``."""
    described: Sequence[Any] = statement.column_descriptions
    entities = _locked_entities(statement)
    locked = {id(one) for one in entities}
    objects = [one["expr"] if one["expr"] is one.get("entity") else None for one in described]
    keys = [*_keys_of_entities(described, entities)]
    if isinstance(statement, Select) and not _is_key_share(statement):
        keys += _keys_of_tables(statement, described)
    mappers: list[Mapper[Any]] = [inspect(one).mapper for one in entities]
    return Adopted(
        next(iter(mappers), None),
        frozenset(map(root_of, mappers)),
        [place for place, one in enumerate(objects) if id(one) in locked],
        keys,
    )


@statement_cache
def locked_tables(statement: Statement, statements: LockStatements) -> Sequence[Table]:
    """Return the tables whose rows the SQL locks; see :func:`froms_to_lock`."""
    froms = froms_to_lock(statement, statements)
    tables = [one.element if isinstance(one, Alias) else one for one in froms]
    return [one for one in tables if isinstance(one, Table)]


def froms_to_lock(statement: Statement, statements: LockStatements) -> list[Table | Alias]:
    """Return the tables, or their aliases, to lock: those of the headers, or else all that it reads.

    :param statements: of the database.
    :raises LockNotSupported: it reads subqueries or CTEs alone, whose rows it does not lock.
    """

    def is_locked(one: Any) -> bool:
        return statements.locks_subqueries and isinstance(one, Subquery)

    entities = _locked_entities(statement)
    if entities:
        return [header_table(one) for one in entities if not is_locked(inspect(one).selectable)]
    froms = [*from_clauses_within(_locked_froms(inner_select(statement)))]
    tables = [*tables_within(froms)]
    if not tables and not any(map(is_locked, froms)):
        raise LockNotSupported(_NO_TABLE)
    return tables


def _locked_entities(statement: Statement) -> list[Any]:
    """Return the classes and aliases whose header rows the statement locks.

    None for ``FOR KEY SHARE``, which protects no document.
    """
    select = inner_select(statement)
    if _is_key_share(select):
        return []
    of = _froms_meant(statement, select)
    selected = (described.get("entity") for described in statement.column_descriptions)
    entities = {id(entity): entity for entity in selected if entity is not None}
    return [one for one in entities.values() if not of or _is_named(one, of)]


def _froms_meant(statement: Statement, select: Select[Any]) -> AbstractSet[Any]:
    """Return the FROM clauses of which the classes must be; empty: all classes are locked."""
    of = for_update_tables(select)
    if select is not statement and not of:  # it may load a class by the columns of another
        of = [*select.get_final_froms()]
    return {*from_clauses_within(of)}


def _is_named(entity: Any, of: AbstractSet[Any]) -> bool:
    """Return whether ``with_for_update(of=)`` names the header's table, or its subquery."""
    if of.isdisjoint(tables_of(entity)):
        return inspect(entity).selectable in of
    return header_table(entity) in of


def _locked_froms(select: Select[Any]) -> Sequence[Any]:
    """Return the FROM clauses that the lock is of: those it names, or else all that are read."""
    return for_update_tables(select) or select.get_final_froms()


def _is_key_share(select: Select[Any]) -> bool:
    found = for_update_of(select)
    return found is not None and found.read and found.key_share


def _keys_of_entities(described: Sequence[Any], entities: Iterable[Any]) -> Iterator[KeyPlaces]:
    """Yield the keys of these classes and aliases that are whole among the selected columns."""
    for entity in entities:
        mapper: Mapper[Any] = inspect(entity).mapper
        places = {
            _attribute_of(mapper, column): place
            for place, one in enumerate(described)
            if one.get("entity") is entity and (column := _column_of(one["expr"])) is not None
        }
        root = root_of(mapper)
        yield from _whole(root, key_attributes(root), places, len(described))


def _keys_of_tables(select: Select[Any], described: Sequence[Any]) -> Iterator[KeyPlaces]:
    """Yield the keys that are whole among the selected columns of the tables that it locks.

    Not those of attributes of a class, which :func:`_keys_of_entities` yields.
    """
    by_table: dict[Any, dict[Any, int]] = {}
    for place, one in enumerate(described):
        column = _column_of(one["expr"]) if one.get("entity") is None else None
        if column is not None and column.table is not None:
            by_table.setdefault(column.table, {})[_base_of(column)] = place
    locked = {*tables_within(_locked_froms(select))} if by_table else ()
    for table in by_table.keys() & locked:
        mapped: Any = table.element if isinstance(table, Alias) else table
        for root in roots_of_table(mapped):
            yield from _whole(root, root.primary_key, by_table[table], len(described))


def _whole(
    root: Mapper[Any], key: Iterable[Any], places: Mapping[Any, int], width: int
) -> Iterator[KeyPlaces]:
    found = [places.get(one) for one in key]
    whole = [place for place in found if place is not None]
    if len(whole) == len(found):
        yield KeyPlaces(root, whole, width)


def _column_of(expression: Any) -> Any | None:
    """Return the column that is selected, with a label or without; None of all else."""
    column = getattr(inspect(expression, raiseerr=False), "expression", None)
    while isinstance(column, Label):
        column = column.element
    return column if isinstance(column, ColumnClause) else None


def _base_of(column: Any) -> Any | None:
    """Return the column of the table that this one, of an alias, stands for."""
    bases = column.base_columns
    return next(iter(bases)) if len(bases) == 1 else None


def _attribute_of(mapper: Mapper[Any], column: Any) -> str | None:
    """Return the attribute that maps the column; None if none does."""
    base = _base_of(column)
    if base is None or not mapper.columns.contains_column(base):
        return None
    return mapper.get_property_by_column(base).key
