"""The way from a row up to the headers of its documents.

Nothing is loaded if the foreign key says it.  A row that is moved belongs to two documents
until it is flushed: after ``line.order = other``, the line is written under the locks of the
order that it leaves and of the order that it comes to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import eq, is_
from typing import Any, Final

from sqlalchemy import ClauseElement, Integer, Select, bindparam, inspect, select
from sqlalchemy.orm import InstanceState, Mapper, Session, aliased
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.exc import ObjectDeletedError

from ..lock_info import Identity
from .declare import has_nested_headers, parts_with_detail
from .mapping import key_attributes, mapper_cache, root_of
from .parts import Part, takes
from .questions import ask, chunks, key_in
from .roles import header_key, is_row_of_root
from .stored_keys import Types, compares_in_python, select_equal_keys

_Row = tuple[Mapper[Any], Identity]

UNKNOWN: Final[Identity] = ()
"""The identity of a header that only the database could tell; no row has it."""


def loaded_headers(
    session: Session,
    root: Mapper[Any],
    state: InstanceState[Any],
    below: tuple[InstanceState[Any], ...] = (),
) -> Iterator[Identity]:
    """Yield the headers of an object, as far as what is loaded tells it.  Sends nothing.

    :param below: the objects that led here; a circle of rows ends at one of them.
    """
    loaded = state.dict
    for part in parts_with_detail(root, state.manager.mapper):
        identity = loaded_owner(part, loaded)
        if has_null(identity) or not takes(part.discriminators, loaded):
            continue
        if identity is UNKNOWN or is_header(root, part.owner):
            yield identity
        else:
            yield from _loaded_headers_of_owner(session, root, part, identity, (*below, state))


def loaded_owner(part: Part, loaded: Mapping[str, Any]) -> Identity:
    """Return the key of the owner, as far as what is loaded tells it; else UNKNOWN."""
    if part.foreign_key is None or any(name not in loaded for name in part.foreign_key):
        return UNKNOWN
    return tuple([loaded[name] for name in part.foreign_key])


def _loaded_headers_of_owner(
    session: Session,
    root: Mapper[Any],
    part: Part,
    identity: Identity,
    below: tuple[InstanceState[Any], ...],
) -> Sequence[Identity]:
    owner = state_in_session(session, part.owner, identity)
    if owner is None or owner in below:
        return [UNKNOWN]
    found = [*loaded_headers(session, root, owner, below)]
    # A category without a parent category is the header itself.
    return found or [identity if root_of(part.owner) is root else UNKNOWN]


@mapper_cache
def is_header(root: Mapper[Any], mapper: Mapper[Any]) -> bool:
    """Return whether every row of this class is the header of a document of this root."""
    return is_row_of_root(mapper, root) and not has_nested_headers(root)


def header_identity(state: InstanceState[Any], root: Mapper[Any]) -> Identity:
    """Return the primary key of a header; of one that is not inserted yet, as far as it is set."""
    if state.identity is not None:
        return header_key(state.mapper, root, state.identity)
    return tuple(_plain(state.dict.get(name)) for name in key_attributes(root))


_is_none: Final = partial(is_, None)


def has_null(identity: Identity) -> bool:
    """Return whether a value is None, so that a foreign key refers to nothing."""
    # None in identity would compare SQL expressions, and a comparison of those has no truth.
    return any(map(_is_none, identity))


def _plain(value: Any) -> Any:
    return None if isinstance(value, ClauseElement) else value


class HeaderResolver:
    """A search for the headers of rows, which keeps what the database has answered.

    :param ask: whether a SELECT may be sent if nothing else tells; otherwise the answer
        has UNKNOWN in it.
    """

    def __init__(self, session: Session, root: Mapper[Any], *, ask: bool) -> None:
        self._session = session
        self._root = root
        self._ask = ask
        # By the state of an object, or by class and key of a row.  What is being searched is in
        # it as empty, so that the search ends if rows are in a circle: a category that was made
        # a child of its own child.
        self._found: dict[object, frozenset[Identity]] = {}
        self._types: dict[Identity, Types] = {}  # of keys that are values of foreign keys
        self._asked: defaultdict[tuple[Part, Identity], list[Identity]] = defaultdict(list)

    def headers(self, state: InstanceState[Any]) -> frozenset[Identity]:
        """Return the headers of an object of the session: those it has, and those it leaves."""
        return self._search_once(state, self._search(state))

    def note_types(self, identity: Identity, types: Types) -> None:
        """Note that a key is the value of a foreign key whose columns have these types."""
        self._types[identity] = types

    def stored_keys(self, identities: Iterable[Identity]) -> Mapping[Identity, Identity]:
        """Return the keys of these headers as the database has them, where they may differ.

        To the database ``ABC`` may be ``abc``, and ``"1"`` may be 1.  One SELECT asks for all.
        """
        asked = [one for one in identities if one is not UNKNOWN and not has_null(one)]
        if not self._ask or not asked or compares_in_python(self._root):
            return {}
        keys = {one: self._types.get(one) for one in asked}
        return dict(select_equal_keys(self._session, self._root, keys))

    def ask_ahead(self, states: Iterable[InstanceState[Any]]) -> None:
        """Ask for the owners of all these rows by one SELECT for each kind, where only it tells them."""
        rows = {(one.mapper, one.identity): None for one in states if one.identity}
        known = {**rows}
        while rows:
            above = (row for row in self._rows_above(rows) if not is_header(self._root, row[0]))
            rows = {row: None for row in above if row not in known}
            known.update(rows)

    def _rows_above(self, rows: Iterable[_Row]) -> Iterator[_Row]:
        kinds: defaultdict[Part, list[Identity]] = defaultdict(list)
        for mapper, identity in rows:
            state = state_in_session(self._session, mapper, identity)
            for part in parts_with_detail(self._root, mapper):
                owner = UNKNOWN if state is None else loaded_owner(part, state.dict)
                if owner is UNKNOWN:
                    kinds[part].append(identity)
                elif not has_null(tuple(map(_plain, owner))):
                    yield part.owner, owner
        for part, identities in kinds.items():
            for owner in self._ask_all(part, identities):
                yield part.owner, owner

    def _ask_all(self, part: Part, identities: Sequence[Identity]) -> Iterator[Identity]:
        """Yield the owners that the database has for these rows, and keep which has which."""
        if all(isinstance(one.type, Integer) for one in part.relationship.mapper.primary_key):
            # The answer has no other spelling of a key: a row that is not in it has no owner.
            self._asked.update({(part, identity): [] for identity in identities})
        for identity, owner in self._ask_owners(part, identities):
            self._asked[part, identity].append(owner)
            yield owner

    def _ask_owners(
        self, part: Part, identities: Sequence[Identity]
    ) -> Iterator[tuple[Identity, Identity]]:
        """Yield the keys of these rows, each with that of an owner that the database has for it."""
        statement, keys = _rows_and_owners(part)
        if len(identities) == 1:  # by a statement that is made once
            parameters = dict(zip(_names(part.relationship.mapper), identities[0], strict=True))
            for row in ask(self._session, _owners_of_row(part), parameters):
                yield identities[0], tuple(row)
            return
        for some in chunks(identities):
            for row in ask(self._session, statement.where(key_in(keys, some))):
                yield tuple(row[: len(keys)]), tuple(row[len(keys) :])

    def _search_once(self, row: object, search: Iterator[Identity]) -> frozenset[Identity]:
        if row not in self._found:
            self._found[row] = frozenset()
            self._found[row] = frozenset(search)
        return self._found[row]

    def _search(self, state: InstanceState[Any]) -> Iterator[Identity]:
        has_owner = False
        for part in parts_with_detail(self._root, state.mapper):
            for owner in self._owners(state, part):
                has_owner = True
                if not isinstance(owner, InstanceState):
                    yield from self.headers_of_row(part.owner, owner)
                elif is_header(self._root, owner.mapper):
                    yield header_identity(owner, self._root)
                else:
                    yield from self.headers(owner)
        # A category with a parent is a part of the topmost one, without a parent a header.
        nested = has_owner and has_nested_headers(self._root)
        if is_row_of_root(state.mapper, self._root) and not nested:
            yield header_identity(state, self._root)

    def headers_of_row(self, mapper: Mapper[Any], identity: Identity) -> frozenset[Identity]:
        """Return the headers of a row, which need not be in the session."""
        if identity is UNKNOWN or is_header(self._root, mapper):
            return frozenset({identity})
        state = state_in_session(self._session, mapper, identity)
        if state is not None:
            return self.headers(state)
        return self._search_once((root_of(mapper), identity), self._search_of_row(mapper, identity))

    def stored_headers(self, mapper: Mapper[Any], identity: Identity) -> frozenset[Identity]:
        """Return the headers that the database has for a row, whatever the session has loaded."""
        return frozenset(self._search_of_row(mapper, identity))

    def _search_of_row(self, mapper: Mapper[Any], identity: Identity) -> Iterator[Identity]:
        has_owner = False
        for part in parts_with_detail(self._root, mapper):
            for owner in self._select_owners(part, identity):
                has_owner = True
                yield from self.headers_of_row(part.owner, owner)
        if is_row_of_root(mapper, self._root) and not has_owner:
            yield identity

    def _owners(
        self, state: InstanceState[Any], part: Part
    ) -> Iterator[InstanceState[Any] | Identity]:
        """Yield the owners of an object: the objects that it refers to, and keys of others."""
        if not self._may_be_part(state, part):
            return
        yield from _owners_by_backrefs(state, part)
        if part.foreign_key is None:
            yield from self._owners_without_key(state, part)
        elif self._is_asked(state, part, part.foreign_key):
            yield from self._asked[part, state.identity or ()]
        elif self._load(state, part.foreign_key):
            yield from self._owners_by_key(state, part, part.foreign_key)
        elif state.identity is not None:
            yield UNKNOWN

    def _is_asked(self, state: InstanceState[Any], part: Part, names: Sequence[str]) -> bool:
        """Return whether the database has told the owner of a row, and the program sets no other."""
        if (part, state.identity) not in self._asked or loaded_owner(
            part, state.dict
        ) is not UNKNOWN:
            return False
        return state.committed_state.keys().isdisjoint(names)

    def _may_be_part(self, state: InstanceState[Any], part: Part) -> bool:
        names = [name for name, _ in part.discriminators]
        return not names or not self._load(state, names) or _may_be_part(state, names, part)

    def _owners_without_key(self, state: InstanceState[Any], part: Part) -> Iterator[Identity]:
        """Yield the owners that the database has, and those that changed values refer to."""
        if state.identity is not None:
            yield from self._select_owners(part, state.identity)
        changed = any(state.attrs[name].history.has_changes() for name, _ in part.reference)
        if part.reference and (changed or state.identity is None):
            values = [state.dict.get(name) for name, _ in part.reference]
            yield from self.owners_by_reference(part, values)

    def owners_by_reference(self, part: Part, values: Sequence[Any]) -> list[Identity]:
        """Return the owners that a detail refers to by another key than the primary one."""
        if has_null(tuple(values)):
            return []
        owner = part.owner.class_
        keys = [getattr(owner, name) for name in key_attributes(part.owner)]
        referred = zip(part.reference, values, strict=True)
        equal = (getattr(owner, name) == value for (_, name), value in referred)
        if not self._ask:
            return [UNKNOWN]
        return [tuple(row) for row in ask(self._session, select(*keys).where(*equal))]

    def _owners_by_key(
        self, state: InstanceState[Any], part: Part, names: Sequence[str]
    ) -> Iterator[Identity]:
        """Yield the foreign key that the row has, and the one that it had.

        UNKNOWN is one that is set to an SQL expression, as in ``line.order_id = select(...)``.
        """
        now = tuple(map(state.dict.get, names))
        if any(isinstance(value, ClauseElement) for value in now):
            yield UNKNOWN
        for key in dict.fromkeys((now, _key_before(state, names, now))):
            if not has_null(tuple(map(_plain, key))):
                self.note_types(key, part.types)
                yield key
        if state.identity is not None and _is_set_unread(state, names):
            yield from self._select_owners(part, state.identity)

    def _load(self, state: InstanceState[Any], names: Iterable[str]) -> bool:
        """Return whether these attributes are loaded, by a SELECT if they were not."""
        if all(name in state.dict for name in names):
            return True
        if not self._ask or state.identity is None:
            return False
        try:
            for name in names:
                getattr(state.obj(), name)
        except ObjectDeletedError:
            return False
        return True

    def _select_owners(self, part: Part, identity: Identity) -> list[Identity]:
        """Return the owners that the database has for a row."""
        if not self._ask:
            return [UNKNOWN]
        if (part, identity) in self._asked:
            return self._asked[part, identity]
        return [owner for _, owner in self._ask_owners(part, [identity])]


def _owners_by_backrefs(state: InstanceState[Any], part: Part) -> Iterator[InstanceState[Any]]:
    """Yield the objects that are or were set as the owner, as by ``line.order = order``."""
    for name in part.backrefs:
        history = state.attrs[name].history
        owners = [*history.added, *history.deleted]
        if not state.persistent:  # else the foreign key tells the one that did not change
            owners += history.unchanged
        yield from (inspect(owner) for owner in owners if owner is not None)


def _may_be_part(state: InstanceState[Any], names: Sequence[str], part: Part) -> bool:
    """Return whether the values that a row has, or those that it had, are those of such a part."""
    if state.identity is not None and _is_set_unread(state, names):
        return True  # the database knows what it was
    now = {name: state.dict.get(name) for name in names}
    before = dict(zip(names, _key_before(state, names, tuple(now.values())), strict=True))
    return takes(part.discriminators, now) or takes(part.discriminators, before)


def _key_before(state: InstanceState[Any], names: Sequence[str], now: Identity) -> Identity:
    deleted = [state.attrs[name].history.deleted for name in names]
    return tuple(old[0] if old else value for old, value in zip(deleted, now, strict=True))


def _is_set_unread(state: InstanceState[Any], names: Iterable[str]) -> bool:
    """Return whether one of these was set while it was expired: its old value was not loaded."""
    histories = (state.attrs[name].history for name in names)
    return any(history.added and not history.deleted for history in histories)


def state_in_session(
    session: Session, mapper: Mapper[Any], identity: Identity
) -> InstanceState[Any] | None:
    """Return the state of the object with this primary key that the session has; nothing is loaded."""
    known = session.identity_map.get(mapper.identity_key_from_primary_key(identity))
    return None if known is None else instance_state(known)


@mapper_cache
def _names(mapper: Mapper[Any]) -> tuple[str, ...]:
    return tuple(f"detail_{position}" for position in range(len(mapper.primary_key)))


@mapper_cache
def _owners_of_row(part: Part) -> Select[Any]:
    statement, row = _rows_and_owners(part)
    owners = [*statement.selected_columns][len(row) :]
    equal = map(eq, row, map(bindparam, _names(part.relationship.mapper)))
    return statement.with_only_columns(*owners).where(*equal)


@mapper_cache
def _rows_and_owners(part: Part) -> tuple[Select[Any], list[Any]]:
    """Return the SELECT of the keys of rows and of those of their owners, and the former."""
    # The class of the relationship: a second class on its table has the same key.
    target = part.relationship.mapper
    detail: Any = part.alias
    if detail is not None:  # its own, which the condition of the relationship names
        owner: Any = part.owner.class_
        join = getattr(owner, part.name)
    else:
        owner, detail = aliased(part.owner.class_), aliased(target.class_)
        join = getattr(owner, part.name).of_type(detail)
    keys = [getattr(owner, name) for name in key_attributes(part.owner)]
    rows = [getattr(detail, name) for name in key_attributes(target)]
    return select(*rows, *keys).select_from(owner).join(join), rows
