"""Rows of documents that are written through a class which does not tell of which document they are.

A row belongs to the document of each class that has its table.  Most classes tell which document that
is: they are the header's or the part's own, or map the foreign key.  Of a row of another class the
database is asked for the row of the document's class that has the same key in the table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import InstanceState, Mapper, Session

from ..core.documents import (
    HeaderResolver,
    ask,
    document_root,
    has_null,
    is_row_of_root,
    key_attributes,
    key_columns,
    mapper_cache,
    parts_with_detail,
    root_of,
)
from ..core.same_tables import mapped_table, same_attribute
from ..core.statements import chunks, key_in
from ..keys import Identity
from ..kinds import kind_attribute, kind_attributes
from .targets import (
    Row,
    Target,
    is_header_target,
    targets_extended,
    targets_of_table,
)
from .touched import key_of_table
from .writes import Write


@mapper_cache
def untold_targets(mapper: Mapper[Any]) -> Mapping[Target, Any]:
    """Return the targets that a row of this class may be and does not tell, each with a table of both."""
    found: dict[Target, Any] = {}
    for table in map(mapped_table, mapper.tables):
        for target in targets_of_table(table):
            if not _is_told(mapper, target):
                found.setdefault(target, table)
    return found


def _is_told(mapper: Mapper[Any], target: Target) -> bool:
    """Return whether an object of the class tells whether it is such a row, and of which document."""
    other = target.mapper
    if other is None:
        return False
    if root_of(other) is root_of(mapper):
        return mapper.isa(other) or kind_attribute(mapper) is not None
    return document_root(mapper) is target.root and _is_told_by_columns(mapper, other, target)


def _is_told_by_columns(mapper: Mapper[Any], other: Mapper[Any], target: Target) -> bool:
    """Return whether the class maps the header's key, or the foreign keys of all parts of the other class."""
    root = target.root
    has_key = is_row_of_root(mapper, root) and {*root.primary_key} <= {*mapper.primary_key}
    if is_header_target(target) and not has_key:
        return False
    told, parts = (parts_with_detail(root, one) for one in (mapper, other))
    found = _is_found_by_its_key(mapper, other, target)
    named = {(one.owner, one.name) for one in told if one.foreign_key or found}
    return named.issuperset((one.owner, one.name) for one in parts)


def _is_found_by_its_key(mapper: Mapper[Any], other: Mapper[Any], target: Target) -> bool:
    """Return whether the key of an object finds the row of the other class, which it cannot move."""
    if [*mapper.primary_key] != [*other.primary_key]:
        return False
    deciding = _deciding_columns(target, other.local_table)
    return not any(same_attribute(mapper, column) for column in deciding)


@mapper_cache
def deciding_attributes(mapper: Mapper[Any]) -> frozenset[str]:
    """Return the attributes whose change may make a row another row of its untold targets."""
    columns = chain.from_iterable(
        chain(table.primary_key, _deciding_columns(target, table))
        for target, table in untold_targets(mapper).items()
    )
    return frozenset(filter(None, (same_attribute(mapper, column) for column in columns)))


def _deciding_columns(target: Target, table: Any) -> Iterator[Any]:
    mapper = target.mapper
    if mapper is None:
        yield from (table.columns[name] for name in target.read)
        return
    for part in parts_with_detail(target.root, mapper):
        for name in (*part.attributes, *(name for name, _ in part.discriminators)):
            yield from mapper.column_attrs[name].columns
    for name in kind_attributes(mapper):
        yield from mapper.base_mapper.column_attrs[name].columns


def key_in_table(
    state: InstanceState[Any], target: Target, table: Any, *, written: bool
) -> Identity | None:
    """Return the key that an object's row has in a table; None if it does not tell.

    :param written: as it was written; else as it was before.
    """
    names = key_of_table(target, table, target.source)
    return _values(state, [table.columns[one] for one in names], written=written)


def owner_in_association(
    state: InstanceState[Any], target: Target, *, written: bool
) -> Identity | None:
    """Return the owner that an object on an association table names; None if only the database knows it."""
    if target.mapper is not None:
        return None
    return _values(state, [target.table.columns[one] for one in target.read], written=written)


def _values(state: InstanceState[Any], columns: Iterable[Any], *, written: bool) -> Identity | None:
    names = [same_attribute(state.mapper, column) for column in columns]
    found = tuple(None if name is None else _value(state, name, written=written) for name in names)
    return None if not found or has_null(found) else found


def _value(state: InstanceState[Any], name: str, *, written: bool) -> Any:
    if written and name in state.dict:
        return state.dict[name]
    history = state.attrs[name].load_history()
    values = history.deleted or history.unchanged or ()
    # SQLAlchemy does not load the key that an expired object had where the table has no primary key.
    key = dict(zip(key_attributes(state.mapper), state.identity or (), strict=False))
    return next(iter(values), key.get(name))


def stored_headers_of(
    session: Session,
    resolver: HeaderResolver,
    target: Target,
    table: Any,
    keys: Collection[Identity],
) -> Iterator[tuple[Identity, Identity]]:
    """Yield the headers that the database has for rows of the target, each with the row's key in the table."""
    columns = [*key_of_table(target, table, target.source).values()]
    own = (
        [table.columns[one] for one in target.read]
        if target.mapper is None
        else key_columns(target.source)
    )
    for some in chunks([*keys]):
        rows = select(*columns, *own).where(key_in(columns, some))
        for row in ask(session, rows, bind_arguments=target.bind_arguments):
            key, identity = tuple(row[: len(columns)]), tuple(row[len(columns) :])
            for header in _headers(resolver, target, identity):
                yield key, header


def _headers(resolver: HeaderResolver, target: Target, identity: Identity) -> Collection[Identity]:
    if target.mapper is not None:
        return resolver.stored_headers(target.mapper, identity)
    return headers_of_owner(resolver, target, identity)


def headers_of_owner(
    resolver: HeaderResolver, target: Target, owner: Identity
) -> Collection[Identity]:
    """Return the headers of the owner that a row of an association table names."""
    (link,) = target.links
    resolver.note_types(owner, link.types)
    return resolver.headers_of_row(link.owner, owner)


def rows_of_untold(
    states: Iterable[InstanceState[Any]],
) -> Iterator[tuple[Mapper[Any], Write, Sequence[Row]]]:
    """Yield the values that objects of such classes are written with, by class and write."""
    found: defaultdict[tuple[Mapper[Any], Write], list[Row]] = defaultdict(list)
    for state in states:
        mapper = state.mapper
        if not untold_targets(mapper):
            continue
        if state.key is None:
            found[mapper, Write.INSERT].append(_columns_among(mapper, state.dict))
        else:
            key = zip(key_attributes(mapper), state.identity or (), strict=True)
            changed = {name: state.dict.get(name) for name in state.committed_state}
            row = _columns_among(mapper, changed)
            found[mapper, Write.UPDATE].append({**row, **dict(key)})
    for (mapper, write), rows in found.items():
        yield mapper, write, rows


def _columns_among(mapper: Mapper[Any], values: Row) -> Row:
    return {name: value for name, value in values.items() if name in mapper.column_attrs}


def inserts_header(state: InstanceState[Any], root: Mapper[Any], header: Identity) -> bool:
    """Return whether the INSERT of an object makes this header too: that of a class on a join()."""
    names = [same_attribute(state.mapper, column) for column in root.primary_key]
    return tuple(None if name is None else state.dict.get(name) for name in names) == header


def is_new_header(target: Target, table: Any) -> bool:
    """Return whether a new row of the table makes a new header of this target, and no other."""
    return is_header_target(target) and not any(targets_extended([target], table, None))
