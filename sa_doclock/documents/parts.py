"""One step from a document's header to its details: a relationship, and the way back up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from sqlalchemy.orm import Mapper, RelationshipDirection, RelationshipProperty
from sqlalchemy.orm.exc import UnmappedColumnError

from .mapping import key_attributes, root_of


class Part(NamedTuple):
    """A relationship from a header, or from a part of it, to details."""

    path: str  # from the header: "lines.taxes"
    owner: Mapper[Any]  # the class that has the relationship
    name: str  # the attribute on the owner
    detail: Mapper[Any]
    foreign_key: tuple[str, ...] | None  # attributes of the detail, in order of the owner's key
    reference: tuple[
        tuple[str, str], ...
    ]  # else: attributes of the detail, and of the owner that they refer to
    backrefs: tuple[str, ...]  # attributes of the detail that lead to the owner
    recursive: bool  # a detail may have such details in turn

    @property
    def relationship(self) -> RelationshipProperty[Any]:
        """The relationship in the mapping."""
        return self.owner.relationships[self.name]

    @property
    def owner_path(self) -> str:
        """The path of the owner; empty for the header."""
        return self.path.rpartition(".")[0]


def build_part(path: str, relationship: RelationshipProperty[Any]) -> Part:
    """Return the part that this relationship leads to."""
    return Part(
        path,
        relationship.parent,
        relationship.key,
        relationship.mapper,
        key := _foreign_key(relationship),
        () if key is not None else tuple(_reference(relationship)),
        tuple(_backrefs(relationship)),
        recursive=root_of(relationship.mapper) is root_of(relationship.parent),
    )


def undeclared_parts(root: Mapper[Any]) -> Iterator[Part]:
    """Yield the parts of a header that was not declared: its collections, one level deep."""
    for mapper in root.self_and_descendants:
        for relationship in mapper.relationships:
            if relationship.direction is RelationshipDirection.ONETOMANY:
                yield build_part(relationship.key, relationship)._replace(recursive=False)


def _foreign_key(relationship: RelationshipProperty[Any]) -> tuple[str, ...] | None:
    owner, detail = relationship.parent, relationship.mapper
    if relationship.direction is not RelationshipDirection.ONETOMANY:
        return None
    try:
        remote = {
            owner.get_property_by_column(local).key: detail.get_property_by_column(remote).key
            for local, remote in relationship.local_remote_pairs or ()
        }
        return tuple(remote[name] for name in key_attributes(owner))
    except (KeyError, UnmappedColumnError):
        return None  # it refers to another key than the primary one


def _reference(relationship: RelationshipProperty[Any]) -> Iterator[tuple[str, str]]:
    if relationship.direction is RelationshipDirection.ONETOMANY:
        for local, remote in relationship.local_remote_pairs or ():
            with suppress(UnmappedColumnError):
                owner = relationship.parent.get_property_by_column(local)
                yield relationship.mapper.get_property_by_column(remote).key, owner.key


def _backrefs(relationship: RelationshipProperty[Any]) -> Iterator[str]:
    for other in relationship.mapper.relationships:
        if _leads_back(other, relationship):
            yield other.key


def _leads_back(other: RelationshipProperty[Any], relationship: RelationshipProperty[Any]) -> bool:
    """Return whether the other relationship leads from the details to their owner."""
    if other is relationship or root_of(other.mapper) is not root_of(relationship.parent):
        return False
    if other.secondary is not relationship.secondary:
        return False
    if other.secondary is not None:
        return True  # many-to-many: both have the same association table
    return _pairs(other) == {(remote, local) for local, remote in _pairs(relationship)}


def _pairs(relationship: RelationshipProperty[Any]) -> set[tuple[Any, Any]]:
    return set(relationship.local_remote_pairs or ())
