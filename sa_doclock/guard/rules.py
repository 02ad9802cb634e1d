"""Why the guard looks at objects of a class: found out once for each mapper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy.orm import Mapper, RelationshipDirection, RelationshipProperty

from ..documents import document_root, is_header, mapper_cache, parts_of, parts_with_detail


class WriteRules(NamedTuple):
    """Why the guard looks at objects of a class."""

    root: Mapper[Any] | None  # they are rows of its documents
    entity: type[Any]  # the class of the root
    header: bool  # each is the header of a document
    foreign_key: tuple[str, ...] | None  # of a part that belongs to its header directly
    backrefs: tuple[str, ...]
    moves: frozenset[str]  # the attributes that move it from one document to another
    settled: frozenset[str]  # these, and those that write to other rows
    watched: Mapping[str, Mapper[Any]]  # relationships that write to rows of others, unseen
    left: Mapping[str, Mapper[Any]]  # those that do so when the row is deleted


@mapper_cache
def rules_for(mapper: Mapper[Any]) -> WriteRules | None:
    """None where the guard never has to look."""
    watched: dict[str, Mapper[Any]] = {}
    left: dict[str, Mapper[Any]] = {}
    for relationship in mapper.relationships:
        root = None if relationship.viewonly else _root_of_any(relationship.mapper)
        if root is not None and _writes_to(relationship, root):
            seen = relationship.secondary is None and relationship.back_populates is not None
            if not seen:  # as a change of the other side
                watched[relationship.key] = root
            if not _goes_along(mapper, relationship.key):
                left[relationship.key] = root
    root = document_root(mapper)
    if root is None and not watched and not left:
        return None
    above = () if root is None else parts_with_detail(root, mapper)
    moves = frozenset(
        name for part in above for name in (*(part.foreign_key or ()), *part.backrefs)
    )
    direct = above[0] if len(above) == 1 and root and is_header(root, above[0].owner) else None
    return WriteRules(
        root,
        (root or mapper).class_,
        root is not None and is_header(root, mapper),
        direct.foreign_key if direct else None,
        direct.backrefs if direct else (),
        moves,
        moves | watched.keys(),
        watched,
        left,
    )


def _root_of_any(mapper: Mapper[Any]) -> Mapper[Any] | None:
    """The documents that rows of this class, or of a subclass of it, are rows of."""
    roots = map(document_root, mapper.self_and_descendants)
    return next((root for root in roots if root is not None), None)


def _writes_to(relationship: RelationshipProperty[Any], root: Mapper[Any]) -> bool:
    """Whether the flush of this relationship writes to rows of a document of the other side."""
    if relationship.secondary is None:
        return relationship.direction is RelationshipDirection.ONETOMANY
    return any(
        part.relationship.secondary is relationship.secondary
        and (relationship.mapper.isa(part.owner) or part.owner.isa(relationship.mapper))
        for part in parts_of(root)
    )


@mapper_cache
def _goes_along(mapper: Mapper[Any], name: str) -> bool:
    """Whether the other side are parts of the row that is deleted, under the same lock."""
    root = document_root(mapper)
    parts = () if root is None else parts_of(root)
    return any(part.name == name and mapper.isa(part.owner) for part in parts)
