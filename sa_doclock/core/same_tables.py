"""Other Table objects for one table: a second MetaData, a reflected Table, ``table()``,
``schema="public"``.

A table is identified by its schema and name.  A name alone proves nothing: a program may have two
databases with tables of one name.  So it is the same table if it is in the same schema, its
statement goes to the engine of the class, and the database has all columns of the mapped Table.  A
database may also find a table by its name in another case.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import chain, product
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, Table, TableClause, inspect, update
from sqlalchemy.exc import NoSuchTableError, UnboundExecutionError
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.orm.exc import UnmappedColumnError

from ..dialects import translated_schema
from ..sqlalchemy_internals import all_mappers
from .documents import Part, declared_roots, mapper_cache, parts_of, tables_within
from .ledger import ledger_of

# Threads: each step is one operation of a dict; two threads may ask the same, with the same answer.
_found: WeakKeyDictionary[Any, set[tuple[str | None, Table]]] = WeakKeyDictionary()
"""The mapped tables whose columns a database has, by its pool and the schema."""


class DocumentTable(NamedTuple):
    """A table that has rows of documents.

    :ivar roots: of the documents.
    :ivar classes: the classes of its rows, each after those above it.
    :ivar parts: those whose association table it is, each with its root.
    """

    roots: dict[Mapper[Any], None]
    classes: dict[Mapper[Any], None]
    parts: list[tuple[Mapper[Any], Part]]


@mapper_cache
def document_tables() -> Mapping[Any, DocumentTable]:
    """Return the tables that have rows of documents: the one registry of them."""
    found: defaultdict[Any, DocumentTable] = defaultdict(lambda: DocumentTable({}, {}, []))
    declared = [(root, parts_of(root)) for root in declared_roots()]  # first: a wrong one raises
    for root, parts in declared:
        for member in (root, *(part.detail for part in parts)):
            lines = (
                reversed([*descendant.iterate_to_root()])
                for descendant in member.self_and_descendants
            )
            for mapper in dict.fromkeys(chain.from_iterable(lines)):
                for table in own_tables(mapper):
                    found[table].roots[root] = found[table].classes[mapper] = None
        for part in parts:
            secondary = part.relationship.secondary
            if secondary is not None:
                found[secondary].roots[root] = None
                found[secondary].parts.append((root, part))
    return found


def own_tables(mapper: Mapper[Any]) -> Sequence[Any]:
    """Return the class's tables that are not those of its base class: several for a join()."""
    own = set(tables_within([mapper.local_table]))
    return [table for table in mapper.tables if table in own] or mapper.tables


@mapper_cache
def _tables_by_name() -> Mapping[str, Mapping[Table, DocumentTable]]:
    found: defaultdict[str, dict[Table, DocumentTable]] = defaultdict(dict)
    for table, rows in document_tables().items():
        if isinstance(table, Table):
            found[table.name.lower()][table] = rows
    return dict(found)


def roots_named(table: Any) -> Collection[Mapper[Any]]:
    """Return the roots of the documents that have rows in a table of this name and schema."""
    schema = getattr(table, "schema", None)
    known = _tables_by_name().get(folded_name(table), {}).items()
    return dict.fromkeys(
        chain.from_iterable(rows.roots for own, rows in known if own.schema == schema)
    )


def mapped_table(table: Any) -> Any:
    """Return the mapped Table of a document that has the name of this table, or the table itself.

    See :func:`is_elsewhere` for whether they are in one schema.
    """
    known = _tables_by_name().get(folded_name(table))
    if known is None or table in known or not isinstance(table, TableClause):
        return table
    found = [other for other in known if may_be_same(other, table)]
    found.sort(key=lambda other: (other.name != table.name, other.schema != table.schema))
    return next(iter(found), table)


def may_be_same(table: Any, other: Any) -> bool:
    """Return whether two Table objects have one name, in schemas that a ``schema_translate_map`` may
    make one.
    """
    clauses = isinstance(table, TableClause) and isinstance(other, TableClause)
    return clauses and folded_name(table) == folded_name(other)


def folded_name(table: Any) -> str:
    """Return the name in lower case, by which some databases find a table; "" without one."""
    return (getattr(table, "name", None) or "").lower()


def root_of_table(table: Any) -> Mapper[Any]:
    """Return the root of a document whose mapped Table has this name."""
    return next(iter(document_tables()[mapped_table(table)].roots))


def is_other_object(table: Any) -> bool:
    """Return whether this may be another Table object for a document's table."""
    return mapped_table(table) is not table


def column_named(table: Any, name: str) -> Any:
    """Return the column that has this name in the database, or None."""
    columns = [column for column in table.columns if column.name.lower() == name.lower()]
    return next((column for column in columns if column.name == name), next(iter(columns), None))


def same_attribute(mapper: Mapper[Any], of_document: Any) -> str | None:
    """Return the attribute of a class that maps this column of a document's table, or None.

    It may map the column of another Table object.
    """
    try:
        return mapper.get_property_by_column(of_document).key
    except UnmappedColumnError:
        pass
    table = getattr(of_document, "table", None)
    for other in mapper.tables:
        if other is not table and (mapped_table(other) is table or mapped_table(table) is other):
            named = column_named(other, of_document.name)
            if named is not None and mapper.columns.contains_column(named):
                return mapper.get_property_by_column(named).key
    return None


@mapper_cache
def other_objects_of(mapper: Mapper[Any]) -> tuple[Any, ...]:
    """Return the tables of a class that may be other Table objects for documents' tables, if none
    is itself.
    """
    names = _tables_by_name()
    known = any(table in names.get(folded_name(table), ()) for table in mapper.tables)
    return () if known else tuple(filter(is_other_object, mapper.tables))


def is_class_elsewhere(session: Session, mapper: Mapper[Any]) -> bool:
    """Return whether the tables of a class only share the names of documents' tables."""
    others = other_objects_of(mapper)
    return bool(others) and all(
        is_elsewhere(session, other, {"mapper": mapper}) for other in others
    )


def is_elsewhere(
    session: Session, table: Any, bind_arguments: Mapping[str, Any], *options: Mapping[str, Any]
) -> bool:
    """Return whether this table, which has the name of a document's, is another one in the database.

    :param bind_arguments: of a statement that names it.
    :param options: the execution options of the statement.
    """
    return is_another_table(
        session, mapped_table(table), root_of_table(table), table, bind_arguments, *options
    )


@mapper_cache
def classes_of_other_objects(root: Mapper[Any]) -> frozenset[Mapper[Any]]:
    """Return the classes that may map the tables of these documents by other Table objects."""
    tables = _tables_of(root)
    names = {*map(folded_name, tables)}
    return frozenset(
        mapper
        for mapper in all_mappers()
        if tables.isdisjoint(mapper.tables)
        and any(folded_name(table) in names for table in mapper.tables)
    )


@mapper_cache
def _tables_of(root: Mapper[Any]) -> frozenset[Any]:
    members = (root, *(part.detail for part in parts_of(root)))
    mappers = chain.from_iterable(member.self_and_descendants for member in members)
    return frozenset(chain.from_iterable(mapper.tables for mapper in mappers))


@mapper_cache
def header_by_name(mapper: Mapper[Any], root: Mapper[Any]) -> tuple[str, ...] | None:
    """Return such a class's attributes that form the key of the header, or refer to it, or None."""
    candidates: list[tuple[Any, Sequence[Any]]] = [(root.local_table, root.primary_key)]
    for part in parts_of(root):
        if part.foreign_key and part.owner is root:
            columns = [part.detail.column_attrs[name].columns[0] for name in part.foreign_key]
            candidates.append((part.detail.local_table, columns))
    found = [
        names
        for own, columns in candidates
        for table in mapper.tables
        if may_be_same(table, own)
        for names in [_attributes_named(mapper, table, columns)]
    ]
    return found[0] if len(found) == 1 else None


def _attributes_named(
    mapper: Mapper[Any], table: Any, columns: Sequence[Any]
) -> tuple[str, ...] | None:
    named = [column_named(table, column.name) for column in columns]
    if not all(column is not None and mapper.columns.contains_column(column) for column in named):
        return None
    return tuple(mapper.get_property_by_column(column).key for column in named)


def may_share_rows(session: Session, root: Mapper[Any], mapper: Mapper[Any]) -> bool:
    """Return whether a class may map the tables of these documents in the session's database."""
    bind = _bind_of(session, mapper)
    if bind is None or is_of_another_engine(session, root, bind.engine):
        return False
    options = bind.get_execution_options()
    return any(
        None in (schemas := {translated_schema(table, options), translated_schema(other, options)})
        or len(schemas) == 1
        for table, other in product(_tables_of(root), mapper.tables)
        if may_be_same(table, other)
    )


def is_another_table(
    session: Session,
    own: Table,
    root: Mapper[Any],
    table: Any,
    bind_arguments: Mapping[str, Any],
    *options: Mapping[str, Any],
) -> bool:
    """Return whether a table is another one in the database than the mapped one of the same name.

    A Table that another class maps belongs to that class: two registries are two models, as of two
    programs in one process, until one session uses both.

    :param root: of the class whose table it may be.
    """
    if table in _mapped_tables() and not _uses(session, root):
        return True
    connection = Session.connection(session, dict(bind_arguments))
    default = connection.dialect.default_schema_name
    all_options = (connection.get_execution_options(), *options)
    schema, other = (translated_schema(side, *all_options) or default for side in (own, table))
    if schema != other or (
        own.name != table.name and not _ignores_case(connection, own, table, schema)
    ):
        return True
    if is_of_another_engine(session, root, connection.engine):
        return is_of_other_model(session, root, table, connection.engine)
    held = ledger_of(session).place_of(root.class_)
    return held is None and not _has_columns(connection, own, translated_schema(own, *all_options))


@mapper_cache
def _mapped_tables() -> frozenset[Any]:
    return frozenset(chain.from_iterable(mapper.tables for mapper in all_mappers()))


def _uses(session: Session, root: Mapper[Any]) -> bool:
    if ledger_of(session).place_of(root.class_) is not None:
        return True
    members = (root, *(part.detail for part in parts_of(root)))
    classes = {member.base_mapper.class_ for member in members}
    return any(key[0] in classes for key in session.identity_map.keys())  # noqa: SIM118  # no Mapping


def is_of_another_engine(session: Session, root: Mapper[Any], engine: Engine) -> bool:
    """Return whether the session holds or writes rows of the class in another database."""
    held = ledger_of(session).place_of(root.class_)
    own = _engine_of(session, root) if held is None else held.engine
    return own is not None and own.pool is not engine.pool


def is_of_other_model(session: Session, root: Mapper[Any], table: Any, engine: Engine) -> bool:
    """Return whether a table only shares the name of the document's, in a database without the class.

    Two databases of a program may have unrelated tables of one name.
    """
    metadata = getattr(root.local_table, "metadata", None)
    if getattr(table, "metadata", None) is metadata:
        return False
    own = _engine_of(session, root)  # a statement may have locked elsewhere, by its bind_arguments
    return own is None or own.pool is not engine.pool


def _engine_of(session: Session, root: Mapper[Any]) -> Engine | None:
    bind = _bind_of(session, root)
    return None if bind is None else bind.engine


def _bind_of(session: Session, root: Mapper[Any]) -> Engine | Connection | None:
    try:
        return session.get_bind(root, clause=update(root.class_))
    except UnboundExecutionError:
        return None


def _ignores_case(connection: Connection, own: Table, table: Any, schema: str | None) -> bool:
    """Return whether the database finds the table by its name in another case; asked each time."""
    name = own.name
    spelt = (name[:i] + name[i].swapcase() + name[i + 1 :] for i in range(len(name)))
    other = next((text for text in spelt if text not in (name, table.name)), table.name)
    return inspect(connection).has_table(other, schema)


def _has_columns(connection: Connection, table: Table, schema: str | None) -> bool:
    """Return whether the database has a table with all mapped columns; asked once per pool."""
    found = _found.setdefault(connection.engine.pool, set())
    if (schema, table) not in found:
        try:
            columns = inspect(connection).get_columns(table.name, schema)
        except NoSuchTableError:
            return False
        names = {column["name"].lower() for column in columns}
        if not names.issuperset(column.name.lower() for column in table.columns):
            return False
        found.add((schema, table))
    return True
