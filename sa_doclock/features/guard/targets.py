"""The targets of a statement: the classes and tables of documents whose rows it writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from sqlalchemy import Alias, BindParameter, ClauseElement, Null, Update, inspect
from sqlalchemy.orm import LoaderCriteriaOption, Mapper
from sqlalchemy.orm.exc import UnmappedColumnError

from ...core.documents import (
    Part,
    declared_roots,
    document_root,
    hierarchy_of,
    is_row_of_root,
    key_attributes,
    kind_attribute,
    kinds_of,
    mapper_cache,
    parts_of,
    parts_with_detail,
)
from ...core.lock_info import Identity
from ...core.sqlalchemy_internals import options_of
from .dml_internals import values_of
from .rules import Generated, generated_attributes

Row = Mapping[Any, Any]


class Link(NamedTuple):
    """A foreign key of the written rows, to their owners."""

    owner: Mapper[Any]
    names: tuple[str, ...]  # in order of the owner's primary key
    part: Part | None = None  # set if the names refer to another key of the owner
    generated: Generated = Generated()  # by the table, of them
    types: tuple[Any, ...] = ()  # of the columns, where they are a foreign key to the primary key
    discriminators: tuple[tuple[str, Any], ...] = ()  # constants that the row must have, too

    @property
    def read(self) -> tuple[str, ...]:
        """The attributes that tell whether a row has such an owner, and which."""
        return (*self.names, *(name for name, _ in self.discriminators))


class Target(NamedTuple):
    """The rows that a statement writes: of a mapped class, or of an association table."""

    root: Mapper[Any]
    name: str
    mapper: Mapper[Any] | None
    links: tuple[Link, ...]
    by_identity: bool  # the foreign keys are not enough to find the documents
    by_key: bool  # SQLAlchemy takes a list of parameters for rows by primary key
    columns: tuple[Any, ...]  # to be read, to find the documents of a row
    unclear: bool = False  # no SELECT can be made that finds these rows
    of_any_kind: bool = False  # rows of other classes of the hierarchy become rows of this one

    def by_attribute(self, row: Row) -> Row:
        """Return the row with names of attributes as its keys."""
        return {self.attribute_of(column): value for column, value in row.items()}

    def identity(self, row: Row) -> Identity | None:
        """Return the primary key of a row, if the row has a plain value for it."""
        assert self.mapper is not None
        key = tuple(literal(row.get(name), row) for name in key_attributes(self.mapper))
        return None if any(v is None or isinstance(v, ClauseElement) for v in key) else key

    def attribute_of(self, column: Any) -> str:
        """Return the name of the attribute that maps a column; its own if none does."""
        key: str = column if isinstance(column, str) else column.key
        if self.mapper is None or key in self.mapper.attrs:
            return key
        columns = self.mapper.local_table.columns
        try:
            return self.mapper.get_property_by_column(columns[key]).key
        except (KeyError, UnmappedColumnError):
            return key

    @property
    def key_columns(self) -> list[Any]:
        """The columns of the primary key."""
        assert self.mapper is not None
        names = key_attributes(self.mapper)
        if self.of_any_kind:
            return [self.column_of(name, None) for name in names]
        return [getattr(self.mapper.class_, name) for name in names]

    def column_of(self, name: str, table: Any) -> Any:
        """Return the column that an attribute maps, which may be one of an association table."""
        if self.mapper is None:
            return table.columns[name]
        return self.mapper.column_attrs[name].columns[0]


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


def targets_of(statement: Any, parameters: Iterable[Row]) -> tuple[Target, ...]:
    """Return the targets of an INSERT, UPDATE or DELETE."""
    found = _targets_of_first_table(statement)
    if isinstance(statement, Update):
        rows = (*values_of(statement).rows, *parameters)
        return (
            *found,
            *_targets_of_other_tables(statement, found),
            *targets_of_new_kinds(found, rows),
        )
    return found


def targets_of_new_kinds(found: Sequence[Target], rows: Iterable[Row]) -> Iterator[Target]:
    """Yield the targets of rows that become rows of another class of their hierarchy."""
    mapper = found[0].mapper if found else None
    kind = None if mapper is None else kind_attribute(mapper)
    if mapper is not None and kind is not None:
        named = (literal(found[0].by_attribute(row).get(kind), row) for row in rows)
        kinds = chain.from_iterable(kinds_of(mapper, one) for one in named)
        yield from chain.from_iterable(map(_targets_of_kind, dict.fromkeys(kinds)))


def _targets_of_kind(mapper: Mapper[Any]) -> Iterator[Target]:
    if mapper.local_table is mapper.base_mapper.local_table:  # else the row needs another beside it
        own = (target for target in targets_of_class(mapper) if target.mapper is mapper)
        yield from map(_of_any_kind, own)


def _of_any_kind(target: Target) -> Target:
    # Columns, and no attributes, with which SQLAlchemy would read the rows of the class alone.
    assert target.mapper is not None
    names = chain.from_iterable(link.read for link in target.links)
    whole = target._replace(of_any_kind=True)
    columns = [target.column_of(name, None) for name in names]
    return whole._replace(columns=tuple(whole.key_columns if target.by_identity else columns))


def _targets_of_first_table(statement: Any) -> tuple[Target, ...]:
    entity = entity_of(statement)
    if entity is not None:
        named, mapper = inspect(entity), inspect(entity).mapper
        if named.is_aliased_class and (mapper.single or _has_criteria(statement)):
            # SQLAlchemy adds the condition of the class, or the criteria, for the table beside the
            # alias: it writes rows of other classes, and on MySQL those of the table.
            return _unclear_targets(mapper.local_table)
        # A class that is mapped on an association table is no part itself, but its table is.
        return targets_of_class(mapper) or _targets_of_table(mapper.local_table)
    if isinstance(statement.table, Alias):
        return _unclear_targets(statement.table.element)
    return _targets_of_table(statement.table)


def _has_criteria(statement: Any) -> bool:
    return any(isinstance(one, LoaderCriteriaOption) for one in options_of(statement))


def entity_of(statement: Any) -> Any:
    """Return the class that an INSERT, UPDATE or DELETE names; None where it names a table."""
    try:
        return statement.entity_description.get("entity")
    except KeyError:  # a Core statement whose WHERE names mapped attributes
        return None


def _targets_of_other_tables(statement: Update, found: Iterable[Target]) -> Iterator[Target]:
    known = {target.mapper.local_table for target in found if target.mapper is not None}
    for table in other_tables(statement) - known:
        yield from _unclear_targets(table)


def other_tables(statement: Any) -> set[Any]:
    """Return the tables that are written beside the first: UPDATE a, b SET a.x = 1, b.y = 2."""
    names = set(chain.from_iterable(values_of(statement).rows))  # MySQL has such statements
    return {getattr(name, "table", None) for name in names} - {None, statement.table}


def _unclear_targets(table: Any) -> tuple[Target, ...]:
    return tuple(target._replace(unclear=True) for target in _targets_of_table(table))


@mapper_cache
def targets_of_class(mapper: Mapper[Any], *, by_key: bool = True) -> tuple[Target, ...]:
    """Return the targets of a statement that names this class."""
    root = document_root(mapper)
    if root is not None:
        return (_build_target(mapper, root, by_key=by_key),)
    # Subclasses may be documents, and their rows are rows of this class.
    roots = ((one, document_root(one)) for one in hierarchy_of(mapper))
    return tuple(_build_target(one, root, by_key=by_key) for one, root in roots if root is not None)


def _build_target(mapper: Mapper[Any], root: Mapper[Any], *, by_key: bool) -> Target:
    parts = parts_with_detail(root, mapper)
    links = tuple(_links(mapper, parts))
    # A header is found by its own key, and so is a line whose order its columns do not name.
    by_identity = is_row_of_root(mapper, root) or not all(part.foreign_key for part in parts)
    by_foreign_key = chain.from_iterable(link.read for link in links)
    names = key_attributes(mapper) if by_identity else by_foreign_key
    columns = tuple(getattr(mapper.class_, name) for name in names)
    return Target(root, mapper.class_.__name__, mapper, links, by_identity, by_key, columns)


def _links(mapper: Mapper[Any], parts: Iterable[Part]) -> Iterator[Link]:
    for part in sorted(parts, key=lambda part: part.foreign_key is None):
        if part.foreign_key:
            generated = generated_attributes(mapper, part.foreign_key)
            types, discriminators = part.types, part.discriminators
            yield Link(part.owner, part.foreign_key, None, generated, types, discriminators)
        elif part.reference:
            names = tuple(name for name, _ in part.reference)
            yield Link(part.owner, names, part, generated_attributes(mapper, names))


def _targets_of_table(table: Any) -> tuple[Target, ...]:
    return _targets_by_table().get(table, ())


@mapper_cache
def _targets_by_table() -> Mapping[Any, tuple[Target, ...]]:
    """Return the targets of statements that name no class, by table."""
    found: dict[Any, tuple[Target, ...]] = {}
    for root in declared_roots():
        found.update(_targets_of_associations(root))
        for member in (root, *(part.detail for part in parts_of(root))):
            for mapper in member.self_and_descendants:
                found.setdefault(mapper.local_table, _targets_of_own_table(mapper))
    return found


def _targets_of_associations(root: Mapper[Any]) -> Iterator[tuple[Any, tuple[Target, ...]]]:
    for part in parts_of(root):
        secondary = part.relationship.secondary
        if secondary is not None:
            remote = dict(part.relationship.synchronize_pairs)
            columns = tuple(remote[column] for column in part.owner.primary_key)
            names, types = zip(*((str(one.key), one.type) for one in columns), strict=True)
            link = Link(part.owner, names, types=types)
            yield secondary, (Target(root, str(secondary), None, (link,), False, False, columns),)


def _targets_of_own_table(mapper: Mapper[Any]) -> tuple[Target, ...]:
    # A statement for the table of single inheritance may write rows of every class in it.
    base = mapper.inherits if mapper.single and mapper.inherits is not None else mapper
    return targets_of_class(base, by_key=False) or targets_of_class(mapper, by_key=False)
