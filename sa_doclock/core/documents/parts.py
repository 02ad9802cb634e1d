"""A part of a document: a relationship from the header to details, and the foreign key back to it.

A row belongs to a class by its table, whichever class maps it.  A program may map a second class to
the table of a header or of a part, as by ``__table__ = Line.__table__``: its rows belong to the
same documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from operator import and_, eq
from typing import Any, NamedTuple
from unicodedata import combining, normalize

from sqlalchemy import BinaryExpression, BindParameter, BooleanClauseList, ColumnClause
from sqlalchemy.orm import Mapper, RelationshipDirection, RelationshipProperty
from sqlalchemy.orm.exc import UnmappedColumnError
from sqlalchemy.types import TypeEngine

from .mapping import key_attributes, relationships_of, root_of


class Part(NamedTuple):
    """A relationship from a header, or from a part of it, to details."""

    path: str  # from the header: "lines.taxes"
    owner: Mapper[Any]  # the class that has the relationship
    name: str  # the attribute on the owner
    detail: Mapper[Any]
    foreign_key: tuple[str, ...] | None  # attributes of the detail, in order of the owner's key
    # otherwise attributes of the detail, and of the owner that they refer to
    reference: tuple[tuple[str, str], ...]
    backrefs: tuple[str, ...]  # attributes of the detail that lead to the owner
    recursive: bool  # a detail may have such details in turn
    # attributes of the detail that the relationship compares with a constant, and the constants
    discriminators: tuple[tuple[str, Any], ...]

    @property
    def attributes(self) -> Iterable[str]:
        """The attributes of the detail that name the owner."""
        return self.foreign_key or [name for name, _ in self.reference]

    @property
    def relationship(self) -> RelationshipProperty[Any]:
        """The relationship in the mapping."""
        return self.owner.relationships[self.name]

    @property
    def alias(self) -> Any:
        """The ``aliased()`` to which the relationship leads; None: it leads to a class."""
        target = self.relationship.entity
        return target.entity if target.is_aliased_class else None

    @property
    def types(self) -> tuple[TypeEngine[Any], ...]:
        """The types of the foreign key, in order of the owner's key."""
        attributes = self.detail.column_attrs
        return tuple(attributes[name].columns[0].type for name in self.foreign_key or ())

    @property
    def owner_path(self) -> str:
        """The path of the owner; empty for the header."""
        return self.path.rpartition(".")[0]


def build_part(path: str, relationship: RelationshipProperty[Any]) -> Part:
    """Return the part that this relationship leads to."""
    owner, detail = relationship.parent, relationship.mapper
    reference = tuple(_reference(relationship))
    by_owner = {of_owner: of_detail for of_detail, of_owner in reference}
    names = key_attributes(owner)
    # Every column is mapped, each refers to a different one, and they include the primary key.
    pairs = len(relationship.local_remote_pairs)
    is_key = len(by_owner) == len(reference) == pairs and by_owner.keys() >= {*names}
    return Part(
        path,
        owner,
        relationship.key,
        detail,
        tuple(by_owner[name] for name in names) if is_key else None,
        () if is_key else reference,
        tuple(back.key for back in detail.relationships if _leads_back(back, relationship)),
        recursive=root_of(detail) is root_of(owner),
        discriminators=tuple(_discriminators(relationship)),
    )


def takes(discriminators: Iterable[tuple[str, Any]], values: Mapping[str, Any]) -> bool:
    """Return whether rows with these values can be details, by the constants of their relationship.

    True for a value that is unknown, or known only to the database.
    """
    return all(_may_be(values.get(name, wanted), wanted) for name, wanted in discriminators)


def _may_be(value: Any, constant: Any) -> bool:
    """Return whether some database and collation may consider the value and the constant equal."""
    if isinstance(value, str) and isinstance(constant, str):
        return _folded(value) == _folded(constant)
    if value is None or type(value) is type(constant):
        return bool(value == constant)
    return True


def _folded(text: str) -> str:
    """Return the text without differences that a collation may ignore: case, accents, trailing spaces."""
    letters = (letter for letter in normalize("NFKD", text) if not combining(letter))
    return "".join(letters).casefold().rstrip()


def _discriminators(relationship: RelationshipProperty[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the columns that a one-to-many compares with constants, as ``Comment.kind == "order"``."""
    if relationship.direction is RelationshipDirection.ONETOMANY:
        for column, value in compared_with_constants(relationship.primaryjoin):
            with suppress(UnmappedColumnError):
                yield relationship.mapper.get_property_by_column(column).key, value


def compared_with_constants(condition: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each column that the condition compares with a constant."""
    if isinstance(condition, BooleanClauseList) and condition.operator is and_:
        yield from chain.from_iterable(map(compared_with_constants, condition.clauses))
    elif isinstance(condition, BinaryExpression) and condition.operator is eq:
        yield from _column_and_constant(condition.left, condition.right)
        yield from _column_and_constant(condition.right, condition.left)


def _column_and_constant(column: Any, constant: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(column, ColumnClause) and isinstance(constant, BindParameter):
        yield column, constant.effective_value


def undeclared_parts(root: Mapper[Any]) -> Iterator[Part]:
    """Yield the parts of an undeclared header: its collections, one level deep."""
    for relationship in relationships_of(root):
        if relationship.direction is RelationshipDirection.ONETOMANY:
            yield build_part(relationship.key, relationship)._replace(recursive=False)


def _reference(relationship: RelationshipProperty[Any]) -> Iterator[tuple[str, str]]:
    """Yield the detail's columns of a one-to-many, each with the owner's column that it refers to."""
    if relationship.direction is RelationshipDirection.ONETOMANY:
        for local, remote in relationship.local_remote_pairs:
            with suppress(UnmappedColumnError):
                owner = relationship.parent.get_property_by_column(local)
                yield relationship.mapper.get_property_by_column(remote).key, owner.key


def _leads_back(other: RelationshipProperty[Any], relationship: RelationshipProperty[Any]) -> bool:
    if other is relationship or root_of(other.mapper) is not root_of(relationship.parent):
        return False
    if other.secondary is not None or relationship.secondary is not None:
        return other.secondary is relationship.secondary  # many-to-many: the same association table
    back = {(remote, local) for local, remote in relationship.local_remote_pairs}
    return set(other.local_remote_pairs) == back


def is_second_class(mapper: Mapper[Any], other: Mapper[Any]) -> bool:
    """Return whether a class writes to the table of another one without inheriting from it."""
    return root_of(mapper) is not root_of(other) and other.local_table in mapper.tables


def is_row_of(mapper: Mapper[Any], other: Mapper[Any]) -> bool:
    """Return whether a row of this class is, or may be, a row of the other one."""
    return mapper.isa(other) or is_second_class(mapper, other)


def is_row_of_root(mapper: Mapper[Any], root: Mapper[Any]) -> bool:
    """Return whether a row of this class has its header row in the table of this root."""
    return root_of(mapper) is root or is_second_class(mapper, root)


def part_as_mapped(part: Part, mapper: Mapper[Any]) -> Part:
    """Return the part with the attributes of the class that maps its rows.

    The foreign key is None if the class does not map it: then only the database knows the owner.
    """
    if mapper.isa(part.detail):
        return part
    names = [_same_attribute(part.detail, mapper, name) for name in part.foreign_key or ()]
    compared = [
        (_same_attribute(part.detail, mapper, name), value) for name, value in part.discriminators
    ]
    return part._replace(
        detail=mapper,
        foreign_key=None if None in names or not names else tuple(filter(None, names)),
        reference=(),
        backrefs=(),
        discriminators=tuple((name, value) for name, value in compared if name is not None),
    )


def _same_attribute(mapper: Mapper[Any], other: Mapper[Any], name: str) -> str | None:
    shared = (
        candidate
        for candidate in mapper.column_attrs[name].columns
        if other.columns.contains_column(candidate)
    )
    column = next(iter(shared), None)
    return None if column is None else other.get_property_by_column(column).key
