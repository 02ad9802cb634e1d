"""All parts of documents that are read already, in one statement for each kind of part.

The statements start from the keys of the headers, whatever the number of owners between;
only where parts have parts of their own kind is there one statement for each depth.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Select, and_, bindparam, inspect, select
from sqlalchemy.orm import Mapper, RelationshipProperty, Session, aliased
from sqlalchemy.orm.attributes import set_committed_value
from sqlalchemy.orm.collections import collection_adapter

from .declarations import parts_of
from .documents import key_attributes, remembered, root_of
from .options import LockOptions
from .parts import Part
from .statements import among, key_names, locking

Identity = tuple[Any, ...]

_UNLOADED = ("dynamic", "write_only")  # mapped so for being too large to load
_KEYS_PER_STATEMENT = 500


def load_parts(session: Session, headers: Sequence[Any], lock: LockOptions) -> None:
    """Load the parts of these documents that are not loaded; all of one hierarchy."""
    if not headers:
        return
    root = root_of(inspect(headers[0]).mapper)
    at: dict[str, list[Any]] = {"": list(headers)}
    keys = [inspect(header).identity for header in headers]
    for step in _steps(root, lock):
        part = step.part
        owners = [one for one in at.get(part.above, ()) if isinstance(one, part.owner.class_)]
        found = _below(session, step, owners, keys)
        at.setdefault(part.path, []).extend(found)
        while part.recursive and (found := _unknown(found, at[part.above])):
            at[part.above].extend(found)
            found = _below(session, step, found, keys)


class _Step(NamedTuple):
    chain: tuple[Part, ...]  # from what the keys are of, down to the part
    lock: LockOptions

    @property
    def part(self) -> Part:
        return self.chain[-1]


@remembered
def _steps(root: Mapper[Any], lock: LockOptions) -> tuple[_Step, ...]:
    dirty = LockOptions.NoLock if lock is LockOptions.NoLock else LockOptions.None_
    parts = [part for part in parts_of(root) if part.relationship.lazy not in _UNLOADED]
    chains: dict[str, tuple[Part, ...]] = {"": ()}
    steps = []
    # Below parts that have parts of their own kind, nothing is at a known depth.
    deep = [part.above for part in parts if part.recursive]
    for part in parts:
        if part.above in chains:
            by_owner = any(f".{part.above}.".startswith(f".{one}." if one else ".") for one in deep)
            chains[part.path] = (*chains[part.above], part)
            steps.append(_Step((part,) if by_owner else chains[part.path], dirty))
    return tuple(steps)


def _below(session: Session, step: _Step, owners: list[Any], keys: list[Identity]) -> list[Any]:
    """The parts of these owners, loaded where they were not."""
    name = step.part.name
    missing = [owner for owner in owners if name not in inspect(owner).dict]
    if missing:
        _fill(session, step, missing, keys)
    return [detail for owner in owners for detail in _members(owner, name)]


def _unknown(found: Iterable[Any], known: list[Any]) -> list[Any]:
    seen = {id(one) for one in known}
    return [one for one in found if id(one) not in seen]


def _fill(session: Session, step: _Step, missing: list[Any], keys: list[Identity]) -> None:
    details: dict[Identity, list[Any]] = defaultdict(list)
    if len(step.chain) == 1:
        keys = [inspect(owner).identity for owner in missing]
    for start in range(0, len(keys), _KEYS_PER_STATEMENT):
        some = keys[start : start + _KEYS_PER_STATEMENT]
        statement, parameters = _statement(step, some)
        for detail, *owner in session.execute(statement, parameters).unique():
            details[tuple(owner)].append(detail)
    part = step.part
    for owner in missing:
        found = details[inspect(owner).identity]
        value = found if part.relationship.uselist else next(iter(found), None)
        set_committed_value(owner, part.name, value)


def _members(owner: Any, name: str) -> Iterator[Any]:
    value = inspect(owner).dict.get(name)
    if value is None:
        return
    adapter = collection_adapter(value) if hasattr(value, "_sa_adapter") else None
    yield from [value] if adapter is None else list(adapter)


def _statement(step: _Step, keys: Sequence[Identity]) -> tuple[Select[Any], Mapping[str, Any]]:
    first = step.chain[0].owner
    if len(keys) == 1:
        names = key_names(first)
        return _by_one_key(step), dict(zip(names, keys[0], strict=True))
    if len(first.primary_key) == 1:
        return _by_keys(step), {"keys": [key[0] for key in keys]}
    statement, columns = _joined(step)
    return statement.where(among(columns, keys)), {}


@remembered
def _by_one_key(step: _Step) -> Select[Any]:
    statement, columns = _joined(step)
    names = key_names(step.chain[0].owner)
    return statement.where(
        and_(
            *(
                column == bindparam(name, type_=column.type)
                for column, name in zip(columns, names, strict=True)
            )
        )
    )


@remembered
def _by_keys(step: _Step) -> Select[Any]:
    statement, (column,) = _joined(step)
    return statement.where(column.in_(bindparam("keys", expanding=True)))


@remembered
def _joined(step: _Step) -> tuple[Select[Any], list[Any]]:
    """The details with the keys of their owners, and the columns to look for the keys in."""
    chain, first, last = step.chain, step.chain[0], step.part
    detail: Any = last.detail.class_  # not aliased: the relationship's ORDER BY names its table
    # What each part is joined to: the owner of the next, at last the detail.
    targets: list[Any] = [aliased(part.owner.class_, flat=True) for part in chain[1:]] + [detail]
    statement, keys = _start(first, targets[0], detail)
    for part, source, target in zip(chain[1:], targets, targets[1:], strict=False):
        statement = statement.join(getattr(source, part.name).of_type(target))
    owner = keys if len(chain) == 1 else _keys_of(targets[-2], last.owner)
    statement = statement.add_columns(*owner)
    statement = statement.order_by(*(last.relationship.order_by or ()))
    if step.lock is LockOptions.NoLock:
        statement = locking(statement, detail, step.lock)
    return statement, keys


def _start(part: Part, target: Any, detail: Any) -> tuple[Select[Any], list[Any]]:
    relationship = part.relationship
    if part.foreign_key is not None and _is_plain(relationship):
        keys = [getattr(target, name) for name in part.foreign_key]
        return select(detail).select_from(target), keys
    if relationship.secondary is not None and target is detail and _is_plain(relationship):
        remote = dict(relationship.synchronize_pairs)
        keys = [remote[column] for column in part.owner.primary_key]
        joined = select(detail).join(relationship.secondary, relationship.secondaryjoin)
        return joined, keys
    header: Any = aliased(part.owner.class_, flat=True)
    joined = select(detail).select_from(header).join(getattr(header, part.name).of_type(target))
    return joined, _keys_of(header, part.owner)


def _is_plain(relationship: RelationshipProperty[Any]) -> bool:
    """Whether the keys are all that the relationship compares."""
    equal = and_(*(one == other for one, other in relationship.synchronize_pairs))
    names_key = {one for one, _ in relationship.synchronize_pairs}
    return names_key == set(relationship.parent.primary_key) and equal.compare(
        relationship.primaryjoin
    )


def _keys_of(entity: Any, mapper: Mapper[Any]) -> list[Any]:
    return [getattr(entity, name) for name in key_attributes(mapper)]
