"""Loads the parts of documents, with one statement for each kind of part.

The session's ``get_document()`` calls load_parts() for unloaded parts, and each lock calls
load_again() for expired attributes that no access loads; both put the details into the attributes
of their owners.

There are three ways, and no other place loads details:

1. The collections of one header, each by its key, as most documents need: ``_load_collections()``.
2. Each kind of part for all owners at once: ``_Loader.load_missing()``.  Its statement starts
   from the keys of the headers, however many owners are between: the taxes of the lines of two
   orders are ``SELECT tax .. JOIN line .. WHERE line.order_id IN (1, 2)``.  Only parts that have
   parts of their own kind, and parts that are loaded again, start from the keys of their owners.
3. A relationship to an ``aliased()``, as SQLAlchemy loads it.

A pipeline sends the SELECTs of the first two ahead, by ``reads_of()``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from sqlalchemy import Select, and_, select
from sqlalchemy.orm import Mapper, RelationshipProperty, Session, aliased, selectinload
from sqlalchemy.orm.attributes import instance_dict, instance_state, set_committed_value
from sqlalchemy.orm.collections import collection_adapter
from sqlalchemy.orm.interfaces import ORMOption

from ...dialects.base import Read
from ...keys import Identity
from ...options import LockOptions
from ..documents import (
    Part,
    chain_of,
    columns_read,
    has_expired,
    key_columns,
    loaded_mappers,
    mapper_cache,
    parts_of,
    root_of,
    select_equal_keys,
    spans_rows,
)
from ..statements import (
    add_nolock,
    chunks,
    equals_key,
    key_in,
    key_in_parameter,
    key_names,
    parameters_by_key,
    parameters_by_keys,
    select_by_key,
    select_by_keys,
)
from .document_index import Unreadable

_UNLOADED = ("dynamic", "write_only")  # mapped so because they are too large to load


def load_parts(session: Session, headers: Sequence[Any], lock: LockOptions) -> None:
    """Load the unloaded parts of these documents of one hierarchy."""
    if headers and not (len(headers) == 1 and _load_collections(session, headers[0], lock)):
        root = root_of(instance_state(headers[0]).mapper)
        _Loader(session, headers).load(root, lock)


def is_loaded(header: Any, lock: LockOptions) -> bool:
    """Return whether the document is certainly loaded, so that load_parts() has nothing to do."""
    state = instance_state(header)
    collections = _collections(state.manager.mapper, lock)
    if collections is None or state.expired_attributes:
        return False
    loaded = state.dict
    return all(
        name in loaded
        and not any(
            instance_state(detail).expired_attributes for detail in collection_adapter(loaded[name])
        )
        for name, _, _ in collections
    )


def load_again(session: Session, unreadable: Unreadable) -> None:
    """Load the parts that a lock has expired, and that no access would load."""
    loader = _Loader(session)
    for part in sorted(unreadable, key=lambda part: part.path.count(".")):
        loader.load_missing(
            LoadStep((part,), part, LockOptions.None_, is_last=False), unreadable[part]
        )
        details = loader.found(part, unreadable[part])
        for below in unreadable:  # a new detail needs the same parts as the others
            news = _not_in(unreadable[below], details)
            unreadable[below] += [
                new for new in news if _has_part(instance_state(new).mapper, below)
            ]


def _load_collections(session: Session, header: Any, lock: LockOptions) -> bool:
    """Load the document if its parts are collections of the header, and none is loaded.

    Most documents are like this.  False: this one is not, or is not completely loaded.
    """
    state = instance_state(header)
    collections = _collections(state.manager.mapper, lock)
    if collections is None or state.key is None:
        return False
    loaded = state.dict
    for name, select_details, parameters in collections:
        if name in loaded:
            return False  # its members may have to be read again
        key = dict(zip(parameters, state.key[1], strict=True))
        details = session.execute(select_details, key).scalars().all()
        if name not in loaded:  # otherwise a listener has loaded it, and may have changed it
            set_committed_value(header, name, details)
    return True


@mapper_cache
def _collections(
    mapper: Mapper[Any], lock: LockOptions
) -> Sequence[tuple[str, Select[Any], tuple[str, ...]]] | None:
    """Return the collections of this class, or None if a header needs anything else loaded.

    Each has the SELECT of its details by the key of one header, and the names of its parameters.
    """
    root = root_of(mapper)
    steps = _steps(root, lock)
    if _may_have_own_columns(root):
        return None
    for step in steps:
        part = step.part
        of_header = len(step.chain) == 1 and not part.owner_path
        plain = part.alias is None and part.relationship.uselist and not repeats_details(step)
        if not (of_header and step.is_last and plain and _has_part(mapper, part)):
            return None
    return [(step.part.name, select_by_one_key(step), key_names(step.part.owner)) for step in steps]


def reads_of(entity: Mapper[Any], identity: Identity, lock: LockOptions) -> list[Read]:
    """Return the SELECTs of load_parts() for the document of this key that are known in advance."""
    return [
        (statement, dict(zip(names, identity, strict=True)))
        for statement, names in _by_key_of_header(entity, lock)
    ]


@mapper_cache
def _by_key_of_header(
    entity: Mapper[Any], lock: LockOptions
) -> Sequence[tuple[Select[Any], tuple[str, ...]]]:
    root, found = root_of(entity), []
    if spans_rows(entity):  # its other tables are read once the root is locked
        found.append((select_by_key(entity, LockOptions.None_), key_names(entity)))
    for step in _steps(root, lock):
        owner = step.chain[0].owner
        if owner.isa(root) and entity.common_parent(owner) and step.part.alias is None:
            found.append((select_by_one_key(step), key_names(owner)))
    return found


class _Loader:
    """Loads the parts of some documents, each kind for all owners at once."""

    def __init__(self, session: Session, headers: Sequence[Any] = ()) -> None:
        self._session, self._headers = session, headers
        # The ids of the details that the database has below these headers.  They exclude a line
        # that the program has moved here without a flush.
        self._stored: set[int] = set()

    def load(self, root: Mapper[Any], lock: LockOptions) -> None:
        """Load all kinds of parts of the headers, from the top down."""
        by_path: dict[str, list[Any]] = {"": list(self._headers)}
        self._load_own_columns(root, self._headers)
        for step in _steps(root, lock):
            part = step.part
            candidates = by_path.get(part.owner_path, ())
            owners = [
                candidate
                for candidate in candidates
                if _has_part(instance_state(candidate).manager.mapper, part)
            ]
            self.load_missing(step, owners)
            if step.is_last:
                continue
            found = self.found(part, owners)
            by_path.setdefault(part.path, []).extend(found)
            # Details with details of their own kind are owners in turn, to the end of the chain.
            while part.recursive and (found := _not_in(by_path[part.owner_path], found)):
                by_path[part.owner_path].extend(found)
                self.load_missing(step, found)
                found = self.found(part, found)
                by_path[part.path].extend(found)

    def load_missing(self, step: LoadStep, owners: Iterable[Any]) -> None:
        part = step.part
        missing = [owner for owner in owners if _is_incomplete(owner, part)]
        if missing and part.alias is None:
            self._load_details(step, missing)
        elif missing:  # as SQLAlchemy loads a relationship to an aliased()
            persistent = _by_identity(missing)
            for owner in persistent.values():
                self._session.expire(owner, [part.name])
            option = selectinload(getattr(part.owner.class_, part.name))
            self._read_again(part.owner, [*persistent], option)

    def found(self, part: Part, owners: Iterable[Any]) -> list[Any]:
        found = [detail for owner in owners for detail in _members(owner, part)]
        self._load_own_columns(part.detail, found)
        return found

    def _load_details(self, step: LoadStep, missing: list[Any]) -> None:
        part = step.part
        if len(step.chain) > 1 and not self._stored.issuperset(map(id, missing)):
            # In the database, a line that the program has moved here belongs to another order: a
            # SELECT by the keys of the headers would miss its taxes.
            step = step._replace(chain=(part,))
        persistent = _by_identity(missing)
        keys = list(persistent if len(step.chain) == 1 else _by_identity(self._headers))
        details: dict[Identity, Sequence[Any]] = {}
        for some in chunks(keys):
            details.update(read_details(self._session, step, some))
        if not step.is_last:
            self._stored.update(map(id, chain.from_iterable(details.values())))
        for key, owner in persistent.items():
            if part.name not in instance_dict(owner):  # else the rows have refreshed its members
                found = details.get(key, ())
                value = found if part.relationship.uselist else next(iter(found), None)
                set_committed_value(owner, part.name, value)

    def _load_own_columns(self, mapper: Mapper[Any], instances: Iterable[Any]) -> None:
        """Load the columns of subclasses that the mapper's SELECT does not read."""
        if not _may_have_own_columns(mapper):
            return
        incomplete: dict[Mapper[Any], list[Identity]] = defaultdict(list)
        for instance in instances:
            state = instance_state(instance)
            own = _own_columns(state.mapper)
            if own and not own <= state.dict.keys() and state.identity is not None:
                incomplete[state.mapper].append(state.identity)
        for subclass, keys in incomplete.items():
            self._read_again(subclass, keys)

    def _read_again(
        self, mapper: Mapper[Any], keys: Sequence[Identity], *options: ORMOption
    ) -> None:
        for some in chunks(keys):
            statement = select_by_keys(mapper, LockOptions.None_, some)
            if options:
                statement = statement.options(*options)
            self._session.scalars(statement, parameters_by_keys(some)).unique().all()


@mapper_cache
def _has_part(mapper: Mapper[Any], part: Part) -> bool:
    """Return whether objects of this class have the part; a subclass may map it differently."""
    return mapper.relationships.get(part.name) is part.relationship


@mapper_cache
def _steps(root: Mapper[Any], lock: LockOptions) -> tuple[LoadStep, ...]:
    base = LockOptions.NoLock if lock is LockOptions.NoLock else LockOptions.None_
    parts = [part for part in parts_of(root) if part.relationship.lazy not in _UNLOADED]
    owners = {part.owner_path for part in parts}
    steps = []
    for part in parts:
        chain = chain_of(root, part)
        if set(parts).issuperset(chain):
            chain = (part,) if _has_unknown_depth(parts, part) else chain
            follow = part.path in owners or part.recursive or _may_have_own_columns(part.detail)
            steps.append(LoadStep(chain, part, base, is_last=not follow))
    return tuple(steps)


def _has_unknown_depth(parts: Iterable[Part], part: Part) -> bool:
    """Return whether the number of owners between the header and the part varies.

    It does below parts that have parts of their own kind; then the SELECT starts from the owner.
    """
    recursive = [above.owner_path for above in parts if above.recursive]
    return any(not path or f"{part.owner_path}.".startswith(f"{path}.") for path in recursive)


def _by_identity(instances: Iterable[Any]) -> dict[Identity, Any]:
    return {
        key[1]: instance
        for instance in instances
        if (key := instance_state(instance).key) is not None
    }


@mapper_cache
def _may_have_own_columns(mapper: Mapper[Any]) -> bool:
    return any(map(_own_columns, mapper.self_and_descendants))


@mapper_cache
def _own_columns(mapper: Mapper[Any]) -> frozenset[str]:
    """Return the attributes that a select of the root class does not load."""
    own = set(columns_read(mapper))
    for loaded in loaded_mappers(root_of(mapper)):
        if mapper.isa(loaded):
            own.difference_update(loaded.column_attrs.keys())
    return frozenset(own)


def _is_incomplete(owner: Any, part: Part) -> bool:
    """Return whether the part is not loaded, or has members that would be read one by one."""
    if part.name not in instance_dict(owner):
        return True
    members = map(instance_state, _members(owner, part))
    return any(has_expired(member, part.detail) for member in members)


def _not_in(known: Iterable[Any], found: Iterable[Any]) -> list[Any]:
    ids = set(map(id, known))
    return [instance for instance in found if id(instance) not in ids]


def _members(owner: Any, part: Part) -> list[Any]:
    value = instance_dict(owner).get(part.name)
    if value is None:
        return []
    return list(collection_adapter(value)) if part.relationship.uselist else [value]


class LoadStep(NamedTuple):
    """One kind of part to load, and the owners from which its statement starts.

    :ivar chain: from the owner whose keys are given, down to the part.
    :ivar part: the last of these.
    :ivar is_last: nothing more is loaded for these parts.
    """

    chain: tuple[Part, ...]
    part: Part
    lock: LockOptions
    is_last: bool


def read_details(
    session: Session, step: LoadStep, keys: Sequence[Identity]
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
    session: Session,
    step: LoadStep,
    keys: Sequence[Identity],
    details: Mapping[Identity, list[Any]],
) -> Mapping[Identity, Sequence[Any]]:
    """Return the details by the keys of their owners, where foreign keys spell them differently.

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
def repeats_details(step: LoadStep) -> bool:
    """Return whether a detail may occur twice: owners share it, or collections are joined to it."""
    eager = (
        relationship.lazy in ("joined", False)
        for mapper in step.part.detail.self_and_descendants
        for relationship in mapper.relationships
    )
    return any(part.foreign_key is None for part in step.chain) or any(eager)


def select_details(
    step: LoadStep, keys: Sequence[Identity]
) -> tuple[Select[Any], Mapping[str, Any]]:
    """Return the SELECT of the details below these keys, and its parameters."""
    first = step.chain[0].owner
    if len(keys) == 1:
        return select_by_one_key(step), parameters_by_key(first, keys[0])
    if len(first.primary_key) == 1:
        return _by_keys(step), parameters_by_keys(keys)
    statement, columns, owner = _joined(step)
    return statement.add_columns(*owner).where(key_in(columns, keys)), {}


@mapper_cache
def select_by_one_key(step: LoadStep) -> Select[Any]:
    """Return the SELECT of the details below one key, with the parameters ``pk_0``, ``pk_1``, ..."""
    statement, columns, owner = _joined(step)
    if len(step.chain) > 1:  # otherwise all rows have the same owner
        statement = statement.add_columns(*owner)
    return statement.where(equals_key(columns, step.chain[0].owner))


@mapper_cache
def _by_keys(step: LoadStep) -> Select[Any]:
    statement, (column,), owner = _joined(step)
    return statement.add_columns(*owner).where(key_in_parameter(column, step.chain[0].owner))


@mapper_cache
def _joined(step: LoadStep) -> tuple[Select[Any], list[Any], list[Any]]:
    """Return a SELECT of the details, the columns of the given keys, and those of the owners' keys."""
    parts, first, last = step.chain, step.chain[0], step.part
    detail: Any = last.detail.class_  # not aliased: the relationship's ORDER BY names its table
    # Each part is joined to the next one's owner, and the last part to the detail.
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
    mappers = [*(part.owner for part in parts), parts[-1].detail]
    tables = [table for mapper in mappers for table in mapper.tables]
    if len(set(tables)) == len(tables):
        return [part.owner.class_ for part in parts]
    return [aliased(part.owner.class_, flat=True) for part in parts]


def _start(part: Part, header: Any, target: Any, detail: Any) -> tuple[Select[Any], list[Any]]:
    relationship = part.relationship
    if part.foreign_key is not None and _compares_keys(relationship):
        # The column with the operators of its type, even if the mapping replaces the attribute's.
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
    # Joining by the relationship would alias the association table, which ORDER BY may name.
    statement = statement.join(relationship.secondary, relationship.primaryjoin)
    return statement.join(target, relationship.secondaryjoin)


def _compares_keys(relationship: RelationshipProperty[Any]) -> bool:
    pairs = relationship.synchronize_pairs
    if {owner for owner, _ in pairs} != set(relationship.parent.primary_key):
        return False
    return and_(*(owner == other for owner, other in pairs)).compare(relationship.primaryjoin)
