"""Rows of mapped classes: their keys, and the rows that they reference by a foreign key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, ref

from sqlalchemy import ForeignKeyConstraint, Table, inspect
from sqlalchemy.orm import InstanceState, Mapper, RelationshipDirection

from sa_doclock.testing.instruments import all_mappers

K = TypeVar("K")
V = TypeVar("V")


class ByObject(dict["ref[K]", V]):
    """A value for each object, without keeping the object alive: a fast WeakKeyDictionary.

    Read a value with ``get(ref(key))``.  A thread may iterate over a list of the values.
    """

    def put(self, key: K, value: V) -> None:
        """Keep this value as long as its object lives."""
        self[ref(key, self.pop)] = value


class Row(NamedTuple):
    """A row of a table: the class at the root of its inheritance, and the primary key."""

    entity: str
    key: tuple[Any, ...]


class Header(NamedTuple):
    """A table that a class references by a foreign key on the table's whole primary key."""

    entity: str
    foreign_key: tuple[str, ...]  # attributes of the class, in the order of the header's key
    collection: str | None  # the header's relationship to the class
    owns: bool  # the header's relationship deletes rows removed from it


# Threads: the audit's listeners run in one thread at a time.
_headers: WeakKeyDictionary[Mapper[Any], tuple[Header, ...]] = WeakKeyDictionary()
_entities: WeakKeyDictionary[Table, str] = WeakKeyDictionary()
_names: ByObject[Mapper[Any], str] = ByObject()
_keys: ByObject[Mapper[Any], tuple[str, ...]] = ByObject()
_attributes: WeakKeyDictionary[Table, Mapping[str, frozenset[str]]] = WeakKeyDictionary()


def entity_name(mapper: Mapper[Any]) -> str:
    """Return the full name of the class at the root: ``shop.models.Order``."""
    found = _names.get(ref(mapper))
    if found is None:
        found = entity_of_class(mapper.base_mapper.class_)
        _names.put(mapper, found)
    return found


def row_written(state: InstanceState[Any]) -> Row:
    """Return the row of an object just written, whose identity key is still the old one."""
    mapper, values = state.mapper, state.dict
    names = _keys.get(ref(mapper))
    if names is None:
        names = tuple(mapper.get_property_by_column(one).key for one in mapper.primary_key)
        _keys.put(mapper, names)
    return Row(entity_name(mapper), tuple(map(values.get, names)))


def entity_of_class(root: type[Any]) -> str:
    """Return the full name of the root class itself."""
    return f"{root.__module__}.{root.__qualname__}"


def entity_of_table(table: Table) -> str:
    """Return the name of the class mapped to a table; without one, the table's own name."""
    found = _entities.get(table)
    if found is None:
        mapper = mapper_of_table(table)
        found = _entities[table] = str(table.key) if mapper is None else entity_name(mapper)
    return found


def mapper_of_table(table: Table) -> Mapper[Any] | None:
    """Return a mapper of this table's rows."""
    return next((mapper for mapper in all_mappers() if table in mapper.tables), None)


def attributes_of(table: Table) -> Mapping[str, frozenset[str]]:
    """Return the program's names for each column of a table: its key, and its mapped attributes."""
    found = _attributes.get(table)
    if found is None:
        names = {key: {key} for key in table.columns.keys()}  # noqa: SIM118  # a collection of columns
        for mapper in all_mappers():
            for attribute in mapper.column_attrs if table in mapper.tables else ():
                for column in attribute.columns:
                    if getattr(column, "table", None) == table:  # or its copy in a statement
                        names[column.key].add(attribute.key)
        found = _attributes[table] = {key: frozenset(of) for key, of in names.items()}
    return found


def mapper_of_statement(statement: Any) -> Mapper[Any] | None:
    """Return the mapper of an INSERT or UPDATE; None if the statement names a table."""
    entity = statement.entity_description.get("entity") if statement.is_dml else None
    found = None if entity is None else inspect(entity, raiseerr=False)
    return None if found is None else found.mapper


def short_name(entity: str) -> str:
    """Return the class name without its module."""
    return entity.rpartition(".")[2]


def row_of(state: InstanceState[Any]) -> Row | None:
    """Return the row of a persistent object."""
    return None if state.key is None else Row(entity_name(state.mapper), tuple(state.key[1]))


def changed_attributes(state: InstanceState[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the column attributes whose value changed, with the new value.

    A flush expires attributes set by an SQL expression; afterwards they are omitted.
    """
    columns, values = state.mapper.column_attrs, state.dict
    for name, old in state.committed_state.items():
        if name in values and name in columns and [values[name]] != [old]:
            yield name, values[name]


def headers_of(mapper: Mapper[Any]) -> tuple[Header, ...]:
    """Return the headers to which rows of this class may belong."""
    found = _headers.get(mapper)
    if found is None:
        found = _headers[mapper] = tuple(_find_headers(mapper))
    return found


def _find_headers(mapper: Mapper[Any]) -> Iterator[Header]:
    for table in mapper.tables:
        if not isinstance(table, Table):
            continue
        for constraint in table.foreign_key_constraints:
            for other in mapper.registry.mappers:
                is_root = other.local_table is constraint.referred_table and other.inherits is None
                if is_root and other is not mapper.base_mapper:
                    yield from _header(mapper, constraint, other)


def _header(
    mapper: Mapper[Any], constraint: ForeignKeyConstraint, parent: Mapper[Any]
) -> Iterator[Header]:
    by_column: dict[Any, Any] = {one.column: one.parent for one in constraint.elements}
    if by_column.keys() != {*parent.primary_key}:
        return
    columns = [by_column[column] for column in parent.primary_key]
    if not all(column in mapper.columns.values() for column in columns):
        return
    names = tuple(mapper.get_property_by_column(column).key for column in columns)
    collection, owns = _collection(parent, mapper, columns)
    yield Header(entity_name(parent), names, collection, owns)


def _collection(
    parent: Mapper[Any], mapper: Mapper[Any], columns: Sequence[Any]
) -> tuple[str | None, bool]:
    """Return the relationship from a header to this class, and whether it deletes removed rows."""
    for relationship in parent.relationships:
        down = relationship.direction is RelationshipDirection.ONETOMANY
        same = relationship.mapper.base_mapper is mapper.base_mapper
        if down and same and {*relationship.remote_side} >= {*columns}:
            return relationship.key, relationship.cascade.delete_orphan
    return None, False


def header_rows(state: InstanceState[Any]) -> Iterator[tuple[Header, Row]]:
    """Yield the rows that this object's row references, if the foreign keys are loaded."""
    values = state.dict
    for header in headers_of(state.mapper):
        key = tuple(values.get(name) for name in header.foreign_key)
        if None not in key:
            yield header, Row(header.entity, key)


def header_rows_of_values(
    mapper: Mapper[Any], values: Mapping[str, Any]
) -> Iterator[tuple[Header, Row]]:
    """Yield the rows that a row with these values references, by column."""
    for header in headers_of(mapper):
        columns = [mapper.column_attrs[name].columns[0].key for name in header.foreign_key]
        key = tuple(values.get(column) for column in columns)
        if None not in key:
            yield header, Row(header.entity, key)
