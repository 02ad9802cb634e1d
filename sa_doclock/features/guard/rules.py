"""The rules by which the guard judges a write to an object, found out once for each mapper."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter, methodcaller
from typing import Any, Final, NamedTuple

from sqlalchemy.orm import (
    InstanceState,
    Mapper,
    RelationshipDirection,
    RelationshipProperty,
    attributes,
)

from ...core.documents import (
    Part,
    document_root,
    is_header,
    is_row_of_root,
    key_attributes,
    kind_attribute,
    mapper_cache,
    parts_of,
    parts_with_detail,
)
from ...core.lock_info import Identity

States = Collection[InstanceState[Any]]

# A flush may have thousands of rows, so these run in C for each of them.
_committed_state: Final[Callable[[Any], Mapping[str, Any]]] = attrgetter("committed_state")
_key: Final[Callable[[Any], tuple[Any, ...] | None]] = attrgetter("key")
_object: Final = methodcaller("obj")


class WriteRules(NamedTuple):
    """The rules for writes to objects of a class."""

    root: Mapper[Any] | None  # of the documents that its rows belong to
    entity: type[Any]  # the class of the root
    header: bool  # each row is the header of a document
    direct: Part | None  # the only part that a row can be, if its foreign key names the header
    moves: frozenset[str]  # the attributes that move a row from one document to another
    keys: frozenset[str]  # the attributes of the primary key, where the row may be a header
    elsewhere: frozenset[str]  # those that move it, or write to rows of other classes
    checked: frozenset[str]  # all these
    kind: frozenset[
        str
    ]  # the attribute by which a row becomes one of another class, with documents
    updates: Mapping[str, Mapper[Any]]  # relationships whose change writes to other documents
    deletes: Mapping[str, Mapper[Any]]  # relationships that do so when the row is deleted
    # The headers that objects name, which are loaded: each once, else KeyError.  None: of such
    # objects more must be known.
    named: Callable[[States], Iterable[Identity]] | None

    def headers_of_changed(self, states: States) -> Iterable[Identity] | None:
        """Return the headers of objects of this class whose change is one of their documents alone.

        None if one of them may be a change of another document, or is not loaded.
        """
        if not all(map(self.elsewhere.isdisjoint, map(_committed_state, states))):
            return None
        try:
            return None if self.named is None else self.named(states)
        except (AttributeError, KeyError):  # the object is freed, or its key is expired
            return None


@mapper_cache
def rules_for(mapper: Mapper[Any]) -> WriteRules | None:
    """Return the rules for objects of this class; None if the guard never checks them."""
    root = document_root(mapper)
    related = list(_related_documents(mapper))
    # A change of order.lines is one of line.order too, and is checked with the line.
    updates = {
        one.key: other
        for one, other in related
        if one.secondary is not None or one.back_populates is None
    }
    deletes, kind = {one.key: other for one, other in related}, _kind(mapper)
    if root is None:
        return _rules_of_related(mapper, updates, deletes, kind) if deletes or kind else None
    return _rules_of_document(root, mapper, updates, deletes, kind)


def _rules_of_document(
    root: Mapper[Any],
    mapper: Mapper[Any],
    updates: Mapping[str, Mapper[Any]],
    deletes: Mapping[str, Mapper[Any]],
    kind: frozenset[str],
) -> WriteRules:
    """Return the rules of a class whose rows are headers or parts."""
    parts = parts_with_detail(root, mapper)
    moves = frozenset(_owner_attributes(parts)) | kind
    keys = _header_keys(root, mapper)
    own = names_of_parts(root, mapper)  # deleted with the row, under the same lock
    header, direct = is_header(root, mapper), _direct_part(root, parts)
    return WriteRules(
        root,
        root.class_,
        header=header,
        direct=direct,
        moves=moves,
        keys=keys,
        elsewhere=moves | updates.keys(),
        checked=moves | keys | updates.keys(),
        kind=kind,
        updates=updates,
        deletes={name: other for name, other in deletes.items() if name not in own},
        named=_named_headers(header, direct),
    )


def _rules_of_related(
    mapper: Mapper[Any],
    updates: Mapping[str, Mapper[Any]],
    deletes: Mapping[str, Mapper[Any]],
    kind: frozenset[str],
) -> WriteRules:
    """Return the rules of a class that is in no document, and whose flush writes to some."""
    checked = frozenset(updates) | kind
    return WriteRules(
        None,
        mapper.class_,
        header=False,
        direct=None,
        moves=kind,
        keys=frozenset(),
        elsewhere=checked,
        checked=checked,
        kind=kind,
        updates=updates,
        deletes=deletes,
        named=None,
    )


def _kind(mapper: Mapper[Any]) -> frozenset[str]:
    name = kind_attribute(mapper)
    others = any(map(document_root, mapper.base_mapper.self_and_descendants))
    return frozenset(() if name is None or not others else (name,))


def _header_keys(root: Mapper[Any], mapper: Mapper[Any]) -> frozenset[str]:
    return frozenset(key_attributes(mapper) if is_row_of_root(mapper, root) else ())


def names_of_parts(root: Mapper[Any], mapper: Mapper[Any]) -> set[str]:
    """Return the attributes of this class that lead to its parts."""
    return {part.name for part in parts_of(root) if mapper.isa(part.owner)}


def _owner_attributes(parts: Iterable[Part]) -> Iterator[str]:
    for part in parts:
        yield from part.foreign_key or ()
        yield from part.backrefs
        yield from (name for name, _ in part.discriminators)


def _direct_part(root: Mapper[Any], parts: Sequence[Part]) -> Part | None:
    if len(parts) != 1 or parts[0].foreign_key is None or not is_header(root, parts[0].owner):
        return None
    if parts[0].discriminators:
        return None  # the foreign key alone does not tell
    return parts[0]


def _own_identities(states: States) -> Iterable[Identity]:
    return [key[1] for key in map(_key, states) if key is not None]


def _named_headers(
    header: bool, part: Part | None
) -> Callable[[States], Iterable[Identity]] | None:
    """Return the function for the headers that objects are themselves, or name by a foreign key."""
    if header:
        return _own_identities
    if part is None or not part.foreign_key:
        return None
    foreign_key, composite = itemgetter(*part.foreign_key), len(part.foreign_key) > 1

    def headers(states: States) -> Iterable[Identity]:
        loaded = map(attributes.instance_dict, map(_object, states))
        values = set(map(foreign_key, loaded))
        return values if composite else zip(values, strict=True)

    return headers


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
