"""The SELECT of one kind of part: from the keys of its owners, or of owners further up, to the details.

``load_parts`` sends it, or has a pipeline send it ahead; its columns are known before any row is read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Select, and_, select
from sqlalchemy.orm import RelationshipProperty, Session, aliased

from ...keys import Identity
from ...options import LockOptions
from ..documents import Part, key_columns, mapper_cache, select_equal_keys
from ..statements import (
    add_nolock,
    equals_key,
    key_in,
    key_in_parameter,
    parameters_by_key,
    parameters_by_keys,
)


class Step(NamedTuple):
    """One kind of part to load, and the owners that its statement starts from.

    :ivar chain: from the owner whose keys are given, down to the part.
    :ivar part: the last of these.
    :ivar is_last: nothing more is loaded for these parts.
    """

    chain: tuple[Part, ...]
    part: Part
    lock: LockOptions
    is_last: bool


def read_details(
    session: Session, step: Step, keys: Sequence[Identity]
) -> Mapping[Identity, Sequence[Any]]:
    """Return the details below these keys, by the keys of their owners."""
    statement, parameters = select_details(step, keys)
    rows = session.execute(statement, parameters)
    if repeats_details(step):
        rows = rows.unique()
    if len(keys) == 1 and len(step.chain) == 1:
        return {keys[0]: rows.scalars().all()}
    details: dict[Identity, list[Any]] = defaultdict(list)
    for detail, *owner in rows:
        details[tuple(owner)].append(detail)
    return _by_stored_keys(session, step, keys, details)


def _by_stored_keys(
    session: Session, step: Step, keys: Sequence[Identity], details: Mapping[Identity, list[Any]]
) -> Mapping[Identity, Sequence[Any]]:
    """Return the details by the keys that their owners have, where foreign keys have others.

    In a collation that ignores case, the lines of the order ``abc`` may refer to ``ABC``.
    """
    part = step.part
    others = details.keys() - set(keys) if len(step.chain) == 1 else ()
    if not others:
        return details
    types = part.types or None
    stored = dict(select_equal_keys(session, part.owner, dict.fromkeys(others, types)))
    found: dict[Identity, list[Any]] = defaultdict(list)
    for key, some in details.items():
        found[stored.get(key, key)] += some
    return found


@mapper_cache
def repeats_details(step: Step) -> bool:
    """Return whether a detail may come twice: owners share it, or collections are joined to it."""
    eager = (
        relationship.lazy in ("joined", False)
        for mapper in step.part.detail.self_and_descendants
        for relationship in mapper.relationships
    )
    return any(part.foreign_key is None for part in step.chain) or any(eager)


def select_details(step: Step, keys: Sequence[Identity]) -> tuple[Select[Any], Mapping[str, Any]]:
    """Return the SELECT of the details below these keys, and its parameters."""
    first = step.chain[0].owner
    if len(keys) == 1:
        return select_by_one_key(step), parameters_by_key(first, keys[0])
    if len(first.primary_key) == 1:
        return _by_keys(step), parameters_by_keys(keys)
    statement, columns, owner = _joined(step)
    return statement.add_columns(*owner).where(key_in(columns, keys)), {}


@mapper_cache
def select_by_one_key(step: Step) -> Select[Any]:
    """Return the SELECT of the details below one key, with the parameters ``pk_0``, ``pk_1``, ..."""
    statement, columns, owner = _joined(step)
    if len(step.chain) > 1:  # else all rows are of the one owner
        statement = statement.add_columns(*owner)
    return statement.where(equals_key(columns, step.chain[0].owner))


@mapper_cache
def _by_keys(step: Step) -> Select[Any]:
    statement, (column,), owner = _joined(step)
    return statement.add_columns(*owner).where(key_in_parameter(column, step.chain[0].owner))


@mapper_cache
def _joined(step: Step) -> tuple[Select[Any], list[Any], list[Any]]:
    """Return a SELECT of the details, and the columns of the given keys and of the owners' keys."""
    parts, first, last = step.chain, step.chain[0], step.part
    detail: Any = last.detail.class_  # not aliased: the relationship's ORDER BY names its table
    # Each part is joined to the owner of the next one, and the last part to the detail.
    targets: list[Any] = [*_owners(parts), detail]
    header = targets.pop(0)
    statement, keys = _start(first, header, targets[0], detail)
    for part, source, target in zip(parts[1:], targets, targets[1:], strict=False):
        statement = _join(statement, part, source, target)
    owner = keys if len(parts) == 1 else key_columns(targets[-2])
    statement = statement.order_by(*(last.relationship.order_by or ()))
    if step.lock is LockOptions.NoLock:
        statement = add_nolock(statement)
    return statement, keys, owner


def _owners(parts: tuple[Part, ...]) -> list[Any]:
    """Return the owners of these parts; aliased, if a table would come twice."""
    mappers = [*(part.owner for part in parts), parts[-1].detail]
    tables = [table for mapper in mappers for table in mapper.tables]
    if len(set(tables)) == len(tables):
        return [part.owner.class_ for part in parts]
    return [aliased(part.owner.class_, flat=True) for part in parts]


def _start(part: Part, header: Any, target: Any, detail: Any) -> tuple[Select[Any], list[Any]]:
    relationship = part.relationship
    if part.foreign_key is not None and _compares_keys(relationship):
        # The column with the operators of its type, whatever the mapping has for the attribute.
        keys = [getattr(target, name).expression for name in part.foreign_key]
        return select(detail).select_from(target), keys
    if relationship.secondary is not None and target is detail and _compares_keys(relationship):
        remote = dict(relationship.synchronize_pairs)
        keys = [remote[column] for column in part.owner.primary_key]
        return select(detail).join(relationship.secondary, relationship.secondaryjoin), keys
    statement = _join(select(detail).select_from(header), part, header, target)
    return statement, key_columns(header)


def _join(statement: Select[Any], part: Part, source: Any, target: Any) -> Select[Any]:
    relationship = part.relationship
    aliases = source is not part.owner.class_ or not isinstance(target, type)
    if relationship.secondary is None or aliases:
        return statement.join(getattr(source, part.name).of_type(target))
    # By the relationship, the association table would be aliased, and ORDER BY may name it.
    statement = statement.join(relationship.secondary, relationship.primaryjoin)
    return statement.join(target, relationship.secondaryjoin)


def _compares_keys(relationship: RelationshipProperty[Any]) -> bool:
    """Return whether the relationship compares the keys and nothing else."""
    pairs = relationship.synchronize_pairs
    if {owner for owner, _ in pairs} != set(relationship.parent.primary_key):
        return False
    return and_(*(owner == other for owner, other in pairs)).compare(relationship.primaryjoin)
