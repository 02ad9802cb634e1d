"""The tables of documents, and the rows that a statement writes in them.

The registry of these tables is ``core/same_tables.py``.  A :class:`Target` says how a row of a
table, or of a class on it, shows its document: by its own key, by a link to its owner, or through
the database.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, product, repeat, starmap
from typing import Any, NamedTuple

from sqlalchemy import (
    Alias,
    BindParameter,
    ClauseElement,
    FromClause,
    Insert,
    Null,
    Update,
    inspect,
)
from sqlalchemy.orm import InstanceState, Mapper, Session
from sqlalchemy.orm.exc import UnmappedColumnError
from sqlalchemy.util import immutabledict

from ..core.documents import (
    Part,
    document_root,
    hierarchy_of,
    is_row_of_root,
    key_attributes,
    mapper_cache,
    parts_with_detail,
    root_of,
)
from ..core.same_tables import (
    column_named,
    document_tables,
    is_class_elsewhere,
    is_elsewhere,
    is_other_object,
    mapped_table,
    own_tables,
    same_attribute,
)
from ..dialects import schema_translation
from ..dml_internals import Values, values_of
from ..keys import Identity
from ..kinds import kind_attribute, kind_attributes, kinds_of


class Way(enum.Enum):
    """The ways to write a row, in the words of the error."""

    INSERT = "inserted"
    UPDATE = "changed"
    DELETE = "deleted"


Row = Mapping[Any, Any]


class Write:
    """An INSERT, UPDATE or DELETE, with the arguments of its execution.

    A bulk method is one too: an ``insert()`` or ``update()`` of its class with a list of rows.

    :ivar how: the execution options and bind arguments.
    :ivar loaded: the objects of the rows, by their primary keys, if they are what is written.
    """

    def __init__(
        self,
        statement: Any,
        parameters: Any = None,
        how: Mapping[str, Any] = immutabledict(),  # it never changes
        loaded: Mapping[Identity, InstanceState[Any]] = immutabledict(),
    ) -> None:
        self.statement, self.parameters, self.how = statement, parameters, how
        self.loaded = loaded

    @cached_property
    def way(self) -> Way:
        """The way in which it writes."""
        if isinstance(self.statement, Insert):
            return Way.INSERT
        return Way.UPDATE if isinstance(self.statement, Update) else Way.DELETE

    @cached_property
    def values(self) -> Values:
        """The values that the statement itself has; a DELETE has none."""
        if self.way is Way.DELETE:
            return Values((), from_select=False, overwrites=False, conditional=False)
        return values_of(self.statement)

    @property
    def given(self) -> Sequence[Row]:
        """The parameters of each execution."""
        given = self.parameters
        if not given and not self.by_key:  # an empty list is one execution without parameters
            return [{}]
        return given if isinstance(given, (list, tuple)) else [given]

    @property
    def rows(self) -> Sequence[Row]:
        """The values and parameters of the rows, combined."""
        return [{**row, **more} for row, more in product(self.values.rows or ({},), self.given)]

    @cached_property
    def entity(self) -> Any:
        """The class that the statement names, or its ``aliased()``; None: it names a table."""
        try:
            return self.statement.entity_description.get("entity")
        except KeyError:  # a Core statement whose WHERE names mapped attributes
            return None

    @cached_property
    def mapper(self) -> Mapper[Any] | None:
        """The mapper of that class."""
        return None if self.entity is None else inspect(self.entity).mapper

    @cached_property
    def named(self) -> Any:
        """The table that it names, without its alias."""
        if self.mapper is not None:
            return self.mapper.local_table
        return _without_alias(self.statement.table)

    @cached_property
    def table(self) -> Any:
        """The mapped Table that it writes to."""
        return mapped_table(self.named)

    @cached_property
    def source(self) -> Any:
        """The table that it names, or its alias."""
        return self.statement.table if isinstance(self.statement.table, Alias) else self.named

    @cached_property
    def by_key(self) -> bool:
        """True if SQLAlchemy treats the parameters as rows, which it finds by their primary key."""
        if not isinstance(self.parameters, list) or self.way is not Way.UPDATE:
            return False  # SQLAlchemy does not treat a tuple as rows
        strategy = self.options.get("dml_strategy", "auto")
        return self.entity is not None and strategy in ("auto", "bulk")

    @cached_property
    def other_tables(self) -> set[Any]:
        """The other tables that it writes, also by aliases: UPDATE a, b SET a.x = 1, b.y = 2."""
        if self.way is not Way.UPDATE:
            return set()
        names = set(chain.from_iterable(self.values.rows))  # MySQL has such statements
        found = {getattr(name, "table", None) for name in names} - {None, self.source}
        if self.mapper is not None:  # also of an aliased()
            found.difference_update(own_tables(self.mapper))
        return {*map(_without_alias, found)}

    @property
    def options(self) -> Mapping[str, Any]:
        """The execution options of the statement and of its execution."""
        own: Mapping[str, Any] = self.statement.get_execution_options()
        return {**own, **self.how.get("execution_options", {})}

    @property
    def schema_options(self) -> Mapping[str, Any]:
        """The execution options that a SELECT needs to read the same tables."""
        return schema_translation(self.statement.get_execution_options())


def _without_alias(table: Any) -> Any:
    return table.element if isinstance(table, Alias) else table


class Link(NamedTuple):
    """A foreign key of the written rows, to their owners."""

    owner: Mapper[Any]
    names: tuple[str, ...]  # in order of the owner's primary key
    part: Part | None = None  # set if the names refer to another key of the owner
    types: tuple[Any, ...] = ()  # of the columns, if they are a foreign key to the primary key
    discriminators: tuple[tuple[str, Any], ...] = ()  # constants that the row must have, too

    @property
    def read(self) -> tuple[str, ...]:
        """The attributes that show whether a row has such an owner, and which."""
        return (*self.names, *(name for name, _ in self.discriminators))


class Target(NamedTuple):
    """The rows that a statement writes: of a mapped class, or of an association table."""

    root: Mapper[Any]
    name: str
    mapper: Mapper[Any] | None
    links: tuple[Link, ...]
    by_identity: bool  # the foreign keys do not suffice to find the documents
    read: tuple[str, ...]  # the attributes that show the documents of a row
    unclear: bool = False  # no SELECT can find these rows
    of_any_kind: bool = False  # rows of other classes of the hierarchy become rows of this one
    named: Mapper[Any] | None = None  # the class whose attributes the statement names
    extended: bool = False  # an INSERT completes its rows, by rows of another table for their keys
    table: Any = None  # the association table
    other: Any = None  # another Table object for the table, which the statement names

    @property
    def source(self) -> Any:
        """The class, or the association table, that a SELECT of the rows names."""
        return self.table if self.mapper is None else self.mapper.class_

    @property
    def bind_arguments(self) -> dict[str, Any] | None:
        """The bind arguments of such a SELECT: a custom ``get_bind()`` may know no database for a
        table alone.
        """
        return {"mapper": self.root} if self.mapper is None else None

    @property
    def key(self) -> tuple[str, ...]:
        """The attributes of the primary key; for an association table without one, the key of its class."""
        if self.mapper is not None:
            return key_attributes(self.mapper)
        named = () if self.named is None else self.named.primary_key
        return tuple(column.key for column in self.table.primary_key or self._own_columns(named))

    @property
    def deciding(self) -> set[str]:
        """The attributes whose change may move a row to another document."""
        kinds = () if self.mapper is None else kind_attributes(self.mapper)
        return {*self.read, *chain.from_iterable(link.read for link in self.links), *kinds}

    def mapped(self, name: str) -> Sequence[Any]:
        """Return the columns of an attribute, one for each table that has it."""
        if self.mapper is None:
            return [self.table.columns[name]]
        return self.mapper.column_attrs[name].columns

    def generates(self, names: Iterable[str], way: Way) -> bool:
        """Return whether the table sets one of these attributes if such a write does not."""
        event = "default" if way is Way.INSERT else "onupdate"
        columns = chain.from_iterable(map(self.mapped, names))
        defaults = product(columns, (event, f"server_{event}"))
        return any(getattr(column, default, None) is not None for column, default in defaults)

    def read_by_link(self, values: Iterable[Any]) -> Iterator[tuple[Link, Row]]:
        """Yield each link with a row's values for it, from these values of ``read``."""
        rest = iter(values)
        for link in self.links:
            yield link, dict(zip(link.read, rest, strict=False))

    def by_attribute(self, row: Row) -> Row:
        """Return the row with attribute names as its keys."""
        return {self.attribute_of(column): value for column, value in row.items()}

    def identity(self, row: Row) -> Identity | None:
        """Return the primary key of a row, if the row has a plain value for it."""
        key = tuple(literal(row.get(name), row) for name in self.key)
        return key if key and is_plain(key) else None

    def attribute_of(self, column: Any) -> str:
        """Return the name of the attribute that maps a column, or the column's own name."""
        key: str = column if isinstance(column, str) else column.key
        attributes: Any = {} if self.named is None else self.named.column_attrs
        columns = attributes[key].columns if key in attributes else ()
        is_of_other = self._is_of_other(column, key)
        if is_of_other:
            columns = (self.other.columns[key],)
        if self.mapper is None:
            return next((str(own.key) for own in self._own_columns(columns)), key)
        name = next(filter(None, map(same_attribute, repeat(self.mapper), columns)), None)
        if name is not None:
            return name
        if is_of_other:
            return f"{self.other.name}.{key}"  # of no attribute
        if key in self.mapper.attrs:
            return key
        try:
            return self.mapper.get_property_by_column(self.mapper.local_table.columns[key]).key
        except (KeyError, UnmappedColumnError):
            return key

    def _is_of_other(self, column: Any, key: str) -> bool:
        """Return whether a column, or the name of one, belongs to the other Table object."""
        if self.other is None or key not in self.other.columns:
            return False
        return getattr(column, "table", None) is not mapped_table(self.other)

    def _own_columns(self, columns: Iterable[Any]) -> Iterator[Any]:
        """Yield the association table's columns, also for columns of another Table object."""
        of_table = (other for other in columns if mapped_table(other.table) is self.table)
        for column in of_table:
            if (own := column_named(self.table, column.name)) is not None:
                yield own

    def has(self, names: set[str]) -> bool:
        """Return whether the class, or the association table, has columns with all these names."""
        columns = self.table.columns if self.mapper is None else self.mapper.column_attrs
        return names <= {*columns.keys()}

    def columns(self, names: Iterable[str]) -> list[Any]:
        """Return the columns that attributes of the class, or of the association table, map."""
        return [self.column_of(name, self.source) for name in names]

    def column_of(self, name: str, source: Any) -> Any:
        """Return the column that an attribute maps.

        :param source: the attribute's class or ``aliased()``, or the table.
        """
        own = self.mapped(name)[0]
        if isinstance(source, FromClause):
            found = source.corresponding_column(own)
            return own if found is None else found
        return own if self.of_any_kind else getattr(source, name)


def is_header_target(target: Target) -> bool:
    """Return whether the rows may be headers."""
    return target.mapper is not None and is_row_of_root(target.mapper, target.root)


def literal(value: Any, row: Row) -> Any:
    """Return the plain value, from the parameters of the row if they have it."""
    if isinstance(value, Null):
        return None
    if not isinstance(value, BindParameter):
        return value
    if value.key in row:
        return row[value.key]
    return value if value.required else value.effective_value


def is_plain(values: Iterable[Any]) -> bool:
    """Return whether Python knows each of these values, and none is NULL."""
    return not any(value is None or isinstance(value, ClauseElement) for value in values)


def targets_of(write: Write, elsewhere: Collection[Any] = ()) -> tuple[Target, ...]:
    """Return the targets of a write.

    :param elsewhere: tables that only share a document's table name.
    """
    if write.named in elsewhere:
        return ()
    found = _targets_of_rows(write)
    if write.way is Way.INSERT:
        return tuple(_targets_of_new_rows(found, write))
    if write.way is Way.DELETE:
        return found
    others = chain.from_iterable(map(_unclear_targets, write.other_tables - {*elsewhere}))
    return (*found, *others, *_targets_of_new_kinds(found, write))


def targets_here(session: Session, write: Write) -> tuple[Target, ...]:
    """Return the targets of a write, except tables that only share a document's table name."""
    return targets_of(write, _tables_elsewhere(session, write))


def _tables_elsewhere(session: Session, write: Write) -> Collection[Any]:
    """Return the write's tables that only share the name of a document's table."""
    statement, mapper = write.statement, write.mapper
    tables = {_without_alias(statement.table), *write.other_tables}
    others = [*filter(is_other_object, tables)]
    if not others or write.by_key:
        elsewhere = mapper is not None and is_class_elsewhere(session, mapper)
        return [write.named] if elsewhere else ()
    binds = {"clause": statement, **write.how.get("bind_arguments", {})}
    if mapper is not None:
        binds = {"mapper": mapper, **binds}
    options = statement.get_execution_options(), write.how.get("execution_options", {})
    return [other for other in others if is_elsewhere(session, other, binds, *options)]


def _targets_of_new_rows(found: Iterable[Target], write: Write) -> Iterator[Target]:
    """Yield the targets of an INSERT, given those of its own rows.

    A new row of a subclass's table completes a row of the tables above it, which may name the
    owner.
    """
    for target in found:
        mapper = target.mapper
        if mapper is None or _inserts_all(mapper, write.mapper):
            yield target
            continue
        above = next(
            (each for each in mapper.iterate_to_root() if write.table not in each.tables), None
        )
        tables = set() if above is None else {*above.tables}
        stored = tuple(
            link
            for link in target.links
            for names in [map(mapper.column_attrs.__getitem__, link.read)]
            if any(column.table in tables for name in names for column in name.columns)
        )
        yield target._replace(links=tuple(link for link in target.links if link not in stored))
        if above is not None and stored:
            read = (*chain.from_iterable(link.read for link in stored),)
            yield target._replace(
                mapper=above,
                named=write.mapper or mapper,
                links=stored,
                by_identity=False,
                read=read,
                extended=True,
                unclear=not {*read} <= {*above.column_attrs.keys()},
            )
    yield from targets_extended(found, write.table, write.mapper)


def _inserts_all(mapper: Mapper[Any], named: Mapper[Any] | None) -> bool:
    return named is not None and named.isa(root_of(mapper))


def targets_extended(
    found: Iterable[Target], table: Any, named: Mapper[Any] | None
) -> Iterator[Target]:
    """Yield the targets whose rows gain a row by an INSERT into a subclass's table.

    None if the statement names the class: SQLAlchemy then inserts new rows into each of the tables.
    """
    for mapper in dict.fromkeys(filter(None, (target.mapper for target in found))):
        if not _inserts_all(mapper, named):
            for target in _targets_of_entity(mapper, by_key=True):
                # Its row may exist already, without a row in this table of a subclass.
                first = target.mapper
                if first is not None and mapper.isa(first) and table not in first.tables:
                    yield target._replace(extended=True, named=named or mapper)


def _targets_of_new_kinds(found: Sequence[Target], write: Write) -> Iterator[Target]:
    """Yield the targets of rows that become rows of another class of their hierarchy."""
    mapper = found[0].mapper if found else None
    names = () if mapper is None else kind_attributes(mapper)
    if mapper is None or not names:
        return
    kinds = list[Mapper[Any]]()
    for row in map(found[0].by_attribute, write.rows):
        if kind_attribute(mapper) is not None:
            kinds += kinds_of(mapper, literal(row.get(names[0]), row))
        elif not row.keys().isdisjoint(names):
            kinds += mapper.polymorphic_map.values()
    for kind in dict.fromkeys(kinds):
        if kind.local_table is kind.base_mapper.local_table:  # else another table has a part
            for target in targets_of_class(kind):
                if target.mapper is kind:
                    yield target._replace(of_any_kind=True, named=found[0].named)


def _targets_of_rows(write: Write) -> tuple[Target, ...]:
    """Return the targets of the rows that a statement names."""
    mapper, table = write.mapper, write.table
    if mapper is None:
        other = None if write.named is table else write.named
        return tuple(target._replace(other=other) for target in targets_of_table(table))
    if mapper.single and not write.by_key and inspect(write.entity).is_aliased_class:
        # SQLAlchemy adds the class's condition to the table, not the alias: it writes rows
        # of other classes, and on MySQL those of the table.
        return _unclear_targets(table)
    return _targets_of_entity(mapper, by_key=write.by_key)


def is_of_one_table(mapper: Mapper[Any]) -> bool:
    """Return whether a SELECT of the class reads only the one table that an UPDATE of it writes."""
    return mapper.selectable is mapper.local_table


def _unclear_targets(table: Any) -> tuple[Target, ...]:
    return tuple(target._replace(unclear=True) for target in targets_of_table(mapped_table(table)))


@mapper_cache
def _targets_of_entity(mapper: Mapper[Any], *, by_key: bool) -> tuple[Target, ...]:
    """Return the targets of a statement that names this class.

    They are those of the class if SQLAlchemy excludes rows of other classes.  It does not for rows
    by primary key, for a class of several tables, or for a second class on the table of another.
    """
    tables = map(mapped_table, root_of(mapper).tables if by_key else own_tables(mapper))
    found = dict.fromkeys(chain.from_iterable(map(targets_of_table, tables)))
    roots = {root_of(target.mapper) for target in found if target.mapper is not None}
    if not by_key and is_of_one_table(mapper) and root_of(mapper) in roots:
        found = dict.fromkeys(targets_of_class(mapper)) or found
    return tuple(target._replace(named=mapper) for target in found)


@mapper_cache
def targets_of_class(mapper: Mapper[Any]) -> tuple[Target, ...]:
    """Return the targets that the rows of a class are.

    Subclasses may be documents or parts of their own, and their rows are rows of this class too.
    """
    found: dict[Mapper[Any], Target] = {}
    for relative in hierarchy_of(mapper):
        root, above = document_root(relative), found.get(relative.inherits or relative)
        if root is not None and not set(relative.tables).isdisjoint(own_tables(mapper)):
            own = _build_target(relative, root)
            found[relative] = own if above is None or above.links != own.links else above
    return tuple(dict.fromkeys(found.values()))


def _build_target(mapper: Mapper[Any], root: Mapper[Any]) -> Target:
    parts, links = parts_with_detail(root, mapper), list[Link]()
    for part in sorted(parts, key=lambda part: part.foreign_key is None):
        names = tuple(part.attributes)
        if part.foreign_key:
            links.append(Link(part.owner, names, None, part.types, part.discriminators))
        elif names:
            links.append(Link(part.owner, names, part))
    # By its own key: a header, or a line whose columns do not name its order.
    by_identity = is_row_of_root(mapper, root) or not all(part.foreign_key for part in parts)
    by_foreign_key = chain.from_iterable(link.read for link in links)
    read = key_attributes(mapper) if by_identity else by_foreign_key
    return Target(root, mapper.class_.__name__, mapper, tuple(links), by_identity, tuple(read))


@mapper_cache
def targets_of_table(table: Any) -> tuple[Target, ...]:
    """Return the targets that the rows of a table are."""
    rows = document_tables().get(table)
    if rows is None:
        return ()
    if rows.parts:
        return tuple(dict.fromkeys(starmap(_target_of_association, rows.parts)))
    # The first class of the table: rows of every class below it may be in it.
    return next(filter(None, map(targets_of_class, rows.classes)), ())


def _target_of_association(root: Mapper[Any], part: Part) -> Target:
    secondary, remote = part.relationship.secondary, dict(part.relationship.synchronize_pairs)
    columns = tuple(remote[column] for column in part.owner.primary_key)
    names, types = zip(*((str(other.key), other.type) for other in columns), strict=True)
    link = Link(part.owner, names, types=types)
    return Target(root, str(secondary), None, (link,), False, names, table=secondary)
