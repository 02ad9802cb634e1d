"""The rules by which the guard judges a write to an object, derived once for each mapper.

A row belongs to the document of each class that maps its table.  Most classes show which document
that is: they are the header's or the part's own, or map the foreign key.  For a row of another,
"untold" class, the database is asked for the row of the document's class that has the same key in
the table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from operator import attrgetter, itemgetter, methodcaller
from typing import Any, Final, NamedTuple

from sqlalchemy.orm import (
    InstanceState,
    Mapper,
    RelationshipDirection,
    RelationshipProperty,
    Session,
    attributes,
)

from ..core.documents import (
    HeaderResolver,
    Part,
    document_root,
    has_null,
    is_header,
    is_row_of_root,
    key_attributes,
    mapper_cache,
    parts_of,
    parts_with_detail,
    root_of,
)
from ..core.same_tables import mapped_table, other_objects_of, same_attribute
from ..keys import Identity
from ..kinds import kind_attribute, kind_attributes
from .targets import Target, Way, is_header_target, targets_of_table


@mapper_cache
def targets_in(mapper: Mapper[Any]) -> Mapping[Target, Any]:
    """Return the targets that a row of this class may be, each with a shared table."""
    tables = map(mapped_table, mapper.tables)
    found = [(target, table) for table in tables for target in targets_of_table(table)]
    return dict(reversed(found))


@mapper_cache
def untold_targets(mapper: Mapper[Any]) -> Mapping[Target, Any]:
    """Return the targets that a row of this class may be without showing it, each with a shared table."""
    found = targets_in(mapper).items()
    return {target: table for target, table in found if not is_told(mapper, target)}


@mapper_cache
def is_told(mapper: Mapper[Any], target: Target) -> bool:
    """Return whether an object of the class shows whether it is such a row, and of which document."""
    other = target.mapper
    if other is None:
        return False
    if root_of(other) is root_of(mapper):
        return mapper.isa(other) or kind_attribute(mapper) is not None
    return document_root(mapper) is target.root and _is_told_by_columns(mapper, other, target)


def _is_told_by_columns(mapper: Mapper[Any], other: Mapper[Any], target: Target) -> bool:
    """Return whether the class maps the header's key, or the foreign keys of all the other's parts."""
    root = target.root
    has_key = is_row_of_root(mapper, root) and {*root.primary_key} <= {*mapper.primary_key}
    if is_header_target(target) and not has_key:
        return False
    told, parts = (parts_with_detail(root, each_class) for each_class in (mapper, other))
    # The object's key may find the row of the other class, which the object then cannot move.
    found = [*mapper.primary_key] == [*other.primary_key] and not any(
        same_attribute(mapper, column) for column in _deciding_columns(target, other.local_table)
    )
    named = {(part.owner, part.name) for part in told if part.foreign_key or found}
    return named.issuperset((part.owner, part.name) for part in parts)


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


States = Collection[InstanceState[Any]]

# A flush may have thousands of rows: these run in C for each of them.
_committed_state: Final[Callable[[Any], Mapping[str, Any]]] = attrgetter("committed_state")
_key: Final[Callable[[Any], tuple[Any, ...] | None]] = attrgetter("key")
_object: Final = methodcaller("obj")


class WriteRules(NamedTuple):
    """The rules for writes to objects of a class."""

    root: Mapper[Any] | None  # of the documents to which its rows belong
    entity: type[Any]  # the class of the root
    header: bool  # each row is the header of a document
    direct: Part | None  # the only part that a row can be, if its foreign key names the header
    moves: frozenset[str]  # the attributes that move a row from one document to another
    keys: frozenset[str]  # the attributes of the primary key, if the row may be a header
    elsewhere: frozenset[str]  # those that move it, or write to rows of other classes
    checked: frozenset[str]  # all of these
    columns: frozenset[str]  # the columns among them, which a write may expire
    kind: frozenset[str]  # the attribute by which a row becomes one of another class
    late: bool  # an UPDATE may move the row by a value that the table sets
    updates: Mapping[str, Mapper[Any]]  # relationships whose change writes to other documents
    unseen: frozenset[str]  # those of them whose written rows have no checked event
    deletes: Mapping[str, Mapper[Any]]  # relationships that do so when the row is deleted
    other: bool  # the class has another Table object for the table; see core/same_tables.py
    untold: bool  # only the database may know a row's document; see untold.py
    # The headers that objects are, or name by a loaded foreign key; KeyError if it is not loaded.
    # None: only other rows show the header.
    named: Callable[[States], Iterable[Identity]] | None

    def headers_of(self, session: Session, way: Way, states: States) -> Iterable[Identity] | None:
        """Return the headers of objects of this class, if each write concerns one document.

        New owners are omitted.  None if one of the objects may be written to another document, or
        does not show its header.
        """
        elsewhere = self.updates.keys() if way is Way.INSERT else self.elsewhere
        alone = all(map(elsewhere.isdisjoint, map(_committed_state, states)))
        if not alone or (way is Way.DELETE and self.deletes):
            return None
        if way is Way.INSERT:
            return self._headers_of_new(states)
        if self.untold:
            return None
        if self.named is None:
            return self._headers_through_others(session, states)
        try:
            return self.named(states)
        except (AttributeError, KeyError):  # the object is freed, or its key is expired
            return None

    def _headers_of_new(self, states: States) -> Iterable[Identity] | None:
        """Return the headers that new objects name, by their foreign key or by their owner."""
        if self.header or self.root is None:
            return ()
        if self.direct is None:
            return None
        loaded = [*map(attributes.instance_dict, map(_object, states))]
        by_owner = _headers_of_owners(loaded, self.direct.backrefs)
        if by_owner is None:
            return None
        values = [map(dict.get, loaded, repeat(name)) for name in self.direct.foreign_key or ()]
        by_key = set(zip(*values, strict=True))
        return by_owner + [header for header in by_key if not has_null(header)]

    def _headers_through_others(
        self, session: Session, states: States
    ) -> Iterable[Identity] | None:
        """Return the headers that loaded other rows lead to."""
        if self.root is None:
            return ()
        resolver = HeaderResolver(session, self.root, ask=False)
        headers = [*map(resolver.headers, states)]
        return chain.from_iterable(headers) if all(headers) else None


@mapper_cache
def rules_for(mapper: Mapper[Any]) -> WriteRules | None:
    """Return the rules for objects of this class; None if the guard never checks them."""
    root = document_root(mapper)
    related = list(_related_documents(mapper))
    # A change of order.lines also changes line.order, and is checked with the line.
    updates = {
        relationship.key: other
        for relationship, other in related
        if relationship.secondary is not None or relationship.back_populates is None
    }
    deletes = {relationship.key: other for relationship, other in related}
    name = kind_attribute(mapper)
    others = any(map(document_root, mapper.base_mapper.self_and_descendants))
    kind = frozenset(() if name is None or not others else (name,))
    if root is None and not (deletes or kind or untold_targets(mapper)):
        return None
    return _build_rules(root, mapper, updates, deletes, kind)


def _build_rules(
    root: Mapper[Any] | None,
    mapper: Mapper[Any],
    updates: Mapping[str, Mapper[Any]],
    deletes: Mapping[str, Mapper[Any]],
    kind: frozenset[str],
) -> WriteRules:
    """Return the rules of a class; without a root it is in no document, but its flush writes to some."""
    parts: Sequence[Part] = ()
    header, direct, keys, own = False, None, frozenset[str](), set[str]()
    if root is not None:
        parts, own = parts_with_detail(root, mapper), names_of_parts(root, mapper)
        header = is_header(root, mapper)
        if len(parts) == 1 and is_header(root, parts[0].owner) and not parts[0].discriminators:
            direct = parts[0] if parts[0].foreign_key else None
        keys = frozenset(key_attributes(mapper) if is_row_of_root(mapper, root) else ())
    owner_attributes = (
        (*part.attributes, *part.backrefs, *dict(part.discriminators)) for part in parts
    )
    moves = frozenset(chain.from_iterable(owner_attributes)) | kind | deciding_attributes(mapper)
    elsewhere = moves | updates.keys()
    return WriteRules(
        root,
        mapper.class_ if root is None else root.class_,
        header=header,
        direct=direct,
        moves=moves,
        keys=keys,
        elsewhere=elsewhere,
        checked=elsewhere | keys,
        columns=(elsewhere | keys).difference(mapper.relationships.keys()),
        kind=kind,
        late=any(
            target.generates(link.names, Way.UPDATE)
            for target in targets_in(mapper)
            for link in target.links
        ),
        updates=updates,
        # These write to an association table, or by separate UPDATEs.
        unseen=frozenset(
            relationship.key
            for relationship in map(mapper.relationships.__getitem__, updates)
            if relationship.secondary is not None or relationship.post_update
        ),
        # Its parts are deleted with the row, under the same lock.
        deletes={name: other for name, other in deletes.items() if name not in own},
        other=bool(other_objects_of(mapper)),
        untold=bool(untold_targets(mapper)),
        named=_named_headers(header, direct),
    )


def names_of_parts(root: Mapper[Any], mapper: Mapper[Any]) -> set[str]:
    """Return the attributes of this class that lead to its parts."""
    return {part.name for part in parts_of(root) if mapper.isa(part.owner)}


def _named_headers(
    header: bool, part: Part | None
) -> Callable[[States], Iterable[Identity]] | None:
    """Return the function for the headers that objects are, or name by a foreign key."""
    if header:
        return lambda states: map(itemgetter(1), filter(None, map(_key, states)))
    if part is None or not part.foreign_key:
        return None
    foreign_key, composite = itemgetter(*part.foreign_key), len(part.foreign_key) > 1

    def headers(states: States) -> Iterable[Identity]:
        loaded = map(attributes.instance_dict, map(_object, states))
        values = set(map(foreign_key, loaded))
        return values if composite else zip(values, strict=True)

    return headers


def _headers_of_owners(
    loaded: Sequence[dict[str, Any]], backrefs: Iterable[str]
) -> list[Identity] | None:
    """Return the headers that own these objects; None if an owner is neither stored nor new."""
    found: dict[int, Any] = {}
    for name in backrefs:
        owners = [*map(dict.get, loaded, repeat(name))]
        found.update(zip(map(id, owners), owners, strict=True))  # each once
    states = [attributes.instance_state(owner) for owner in found.values() if owner is not None]
    if not all(state.identity or state.pending for state in states):
        return None
    return [state.identity for state in states if state.identity is not None]


def _related_documents(
    mapper: Mapper[Any],
) -> Iterator[tuple[RelationshipProperty[Any], Mapper[Any]]]:
    """Yield the relationships whose flush writes to documents of the other side, and their root."""
    for relationship in mapper.relationships:
        roots = map(document_root, relationship.mapper.self_and_descendants)
        root = next(filter(None, roots), None)
        if root is not None and not relationship.viewonly and _writes_to(relationship, root):
            yield relationship, root


def _writes_to(relationship: RelationshipProperty[Any], root: Mapper[Any]) -> bool:
    """Return whether the flush of this relationship writes to documents of the other side."""
    if relationship.secondary is None:
        return relationship.direction is RelationshipDirection.ONETOMANY
    return any(
        part.relationship.secondary is relationship.secondary
        and (relationship.mapper.isa(part.owner) or part.owner.isa(relationship.mapper))
        for part in parts_of(root)
    )
