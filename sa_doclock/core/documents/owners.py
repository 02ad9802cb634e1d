"""The headers of a row, found by its foreign keys: the keys of the documents to which it belongs.

A lock asks for those of pending changes, and the guard for those of each written row.  If the
foreign key is loaded, nothing is read.  A moved row belongs to two documents until it is flushed:
after ``line.order = other``, to the order that it leaves and the order that it joins.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import is_
from typing import Any, Final, TypeVar
from uuid import UUID

from sqlalchemy import ClauseElement, Integer, Select, Uuid, inspect, select
from sqlalchemy.orm import InstanceState, Mapper, Session, aliased, lazyload
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.exc import ObjectDeletedError

from ...keys import Identity
from .declare import has_nested_headers, parts_with_detail
from .mapping import key_attributes, key_columns, mapper_cache, root_of
from .parts import Part, is_row_of_root, takes
from .stored_keys import Types, ask, chunks, compares_in_python, key_in, select_equal_keys

UNKNOWN: Final[Identity] = ()
"""The identity of a header that only the database knows; no row has it."""

T = TypeVar("T")

_EAGER: Final = {"joined", "selectin", "subquery", "immediate", False}  # False is the old "joined"
_MANY: Final = 2  # from so many objects on, one query for all of them pays off


@mapper_cache
def is_header(root: Mapper[Any], mapper: Mapper[Any]) -> bool:
    """Return whether every row of this class is the header of a document of this root."""
    return is_row_of_root(mapper, root) and not has_nested_headers(root)


def header_identity(state: InstanceState[Any], root: Mapper[Any]) -> Identity:
    """Return the primary key of a header; for an uninserted one, the values set so far."""
    if state.identity is None:
        return tuple(_plain(state.dict.get(name)) for name in key_attributes(root))
    if root_of(state.mapper) is root:
        return state.identity
    # A second class on the table may not map the whole key; a header's key has no None.
    values = dict(zip(state.mapper.primary_key, state.identity, strict=True))
    return tuple(values.get(column) for column in root.primary_key)


_is_none: Final = partial(is_, None)


def has_null(identity: Identity) -> bool:
    """Return whether a value is None, so that a foreign key refers to no row."""
    # "None in identity" would compare SQL expressions, and such a comparison has no truth value.
    return any(map(_is_none, identity))


def _plain(value: Any) -> Any:
    return None if isinstance(value, ClauseElement) else value


class HeaderResolver:
    """A search for the headers of rows, which caches the answers of the database.

    :param ask: whether a SELECT may be sent as a last resort; otherwise the answer contains
        UNKNOWN.
    """

    def __init__(self, session: Session, root: Mapper[Any], *, ask: bool) -> None:
        self._session = session
        self._root = root
        self._ask = ask
        # By an object's state, or by class and key of a row.  Each search first enters itself as
        # empty, so that it ends if rows form a cycle, as a category below its own child does.
        self._found: dict[object, frozenset[Identity]] = {}
        self._types: dict[Identity, Types] = {}  # of keys that come from foreign keys
        self._answers: defaultdict[Question, dict[Identity, list[Identity]]] = defaultdict(dict)
        # The next questions of read_ahead(): keys, and objects with expired attributes.
        self._to_ask: defaultdict[Question, dict[Identity, None]] | None = None
        self._to_load: defaultdict[Mapper[Any], dict[InstanceState[Any], None]] | None = None
        self._loaded: set[InstanceState[Any]] = set()

    def read_ahead(self, states: Sequence[InstanceState[Any]]) -> None:
        """Read at once the rows that headers() would read for each of these objects."""
        if self._ask and len(states) >= _MANY:
            self.read_together(lambda: [*map(self.headers, states)])

    def read_together(self, search: Callable[[], T]) -> T:
        """Run a search, send its questions together, and return its result.

        One SELECT reads hundreds of rows; each step on the way to the header needs one.

        :param search: calls the methods of this object.  It runs once for each step.
        """
        while True:
            to_ask = self._to_ask = defaultdict(dict)
            to_load = self._to_load = defaultdict(dict)
            found = search()
            self._to_ask = self._to_load = None
            if not to_ask and not to_load:
                return found
            self._found.clear()
            for mapper, expired in to_load.items():
                self._load_all(mapper, expired)
            for question, keys in to_ask.items():
                self._answer(question, [*keys])

    def _load_all(self, mapper: Mapper[Any], states: Collection[InstanceState[Any]]) -> None:
        rows, key = _rows_of(mapper)
        for some in chunks([state.identity for state in states if state.identity]):
            ask(self._session, rows.where(key_in(key, some)))
        self._loaded.update(states)

    def headers(self, state: InstanceState[Any]) -> frozenset[Identity]:
        """Return the headers of an object of the session: its current and its previous ones."""
        return self._search_once(state, self._search(state))

    def note_types(self, identity: Identity, types: Types) -> None:
        """Note that a key came from a foreign key with these column types."""
        self._types[identity] = types

    def stored_keys(self, identities: Iterable[Identity]) -> Mapping[Identity, Identity]:
        """Return the stored form of these headers' keys, if it may differ.

        To the database, ``ABC`` may equal ``abc``, and ``"1"`` may equal 1.  One SELECT asks for
        all.
        """
        asked = [
            identity
            for identity in identities
            if identity is not UNKNOWN and not has_null(identity)
        ]
        if not self._ask or not asked or compares_in_python(self._root):
            return {}
        keys = {key: self._types.get(key) for key in asked}
        return dict(select_equal_keys(self._session, self._root, keys))

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
        # A category with a parent is a part of the topmost one; without a parent, it is a header.
        nested = has_owner and has_nested_headers(self._root)
        if is_row_of_root(state.mapper, self._root) and not nested:
            yield header_identity(state, self._root)

    def headers_of_row(self, mapper: Mapper[Any], identity: Identity) -> frozenset[Identity]:
        """Return the headers of a row, which may be absent from the session."""
        if identity is UNKNOWN or is_header(self._root, mapper):
            return frozenset({identity})
        state = state_in_session(self._session, mapper, identity)
        if state is not None:
            return self.headers(state)
        if not self._ask:
            return frozenset({UNKNOWN})
        return self._search_once((root_of(mapper), identity), self._search_of_row(mapper, identity))

    def stored_headers(self, mapper: Mapper[Any], identity: Identity) -> frozenset[Identity]:
        """Return the headers of a stored row, whatever the session has loaded."""
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
        discriminators = [name for name, _ in part.discriminators]
        if discriminators and self._load(state, discriminators) and not _may_be_part(state, part):
            return
        yield from _owners_by_backrefs(state, part)
        if part.foreign_key is None:
            yield from self._owners_without_key(state, part)
        elif self._load(state, part.foreign_key):
            yield from self._owners_by_key(state, part, part.foreign_key)
        elif state.identity is not None:
            yield UNKNOWN

    def _owners_without_key(self, state: InstanceState[Any], part: Part) -> Iterator[Identity]:
        """Yield the owners in the database, and the owners to which changed values refer."""
        if state.identity is not None:
            if self._to_load is not None:  # an object that expired later was written
                self._load(state, [name for name, _ in part.reference])
            yield from self._select_owners(part, state.identity)
        changed = any(state.attrs[name].history.has_changes() for name, _ in part.reference)
        if part.reference and (changed or state.identity is None):
            values = [state.dict.get(name) for name, _ in part.reference]
            yield from self.owners_by_reference(part, values)

    def owners_by_reference(self, part: Part, values: Sequence[Any]) -> list[Identity]:
        """Return the owners to which a detail refers by another key than the primary one."""
        if has_null(tuple(values)):
            return []
        return self._ask_about(_owners_referred_to(part), tuple(values))

    def _owners_by_key(
        self, state: InstanceState[Any], part: Part, names: Sequence[str]
    ) -> Iterator[Identity]:
        """Yield the row's foreign key, and its previous one.

        UNKNOWN stands for an SQL expression, as in ``line.order_id = select(...)``.
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
        if all(name in state.dict for name in names):
            return True
        if not self._ask or state.identity is None:
            return False
        if self._to_load is not None and state not in self._loaded:
            self._to_load[state.mapper][state] = None
            return False
        try:
            for name in names:
                getattr(state.obj(), name)
        except ObjectDeletedError:
            return False
        return True

    def _select_owners(self, part: Part, identity: Identity) -> list[Identity]:
        return self._ask_about(_owners_of_row(part), identity)

    def _ask_about(self, question: Question, key: Identity) -> list[Identity]:
        if not self._ask:
            return [UNKNOWN]
        answers = self._answers[question]
        if key not in answers:
            if self._to_ask is not None:
                self._to_ask[question][key] = None
                return []
            self._answer(question, [key])
        return answers[key]

    def _answer(self, question: Question, keys: Sequence[Identity]) -> None:
        found: defaultdict[Identity, list[Identity]] = defaultdict(list)
        length = len(question.keys)
        for some in chunks(keys):
            statement = question.rows.where(key_in(question.keys, some))
            for row in ask(self._session, statement):
                found[some[0] if len(keys) == 1 else tuple(row[:length])].append(
                    tuple(row[length:])
                )
        for key in keys:
            if key in found or len(keys) == 1 or question.is_exact(key):
                self._answers[question][key] = found[key]
            else:  # it may still equal one of these rows' keys: ABC, abc
                self._answer(question, [key])


class Question:
    """A SELECT of columns of rows by their keys, which are the first columns of its result."""

    def __init__(self, keys: Sequence[Any], rows: Select[Any]) -> None:
        self.keys = keys
        self.rows = rows

    def is_exact(self, key: Identity) -> bool:
        """Return whether all keys that the database considers equal to this one are equal in Python."""
        types = zip((column.type for column in self.keys), key, strict=True)
        return all(
            (isinstance(type_, Integer) and isinstance(value, int))
            or (isinstance(type_, Uuid) and isinstance(value, UUID))
            for type_, value in types
        )


def _owners_by_backrefs(state: InstanceState[Any], part: Part) -> Iterator[InstanceState[Any]]:
    if state.persistent and _is_unchanged(state, part.backrefs):
        return  # the foreign key identifies an unchanged owner
    for name in part.backrefs:
        history = state.attrs[name].history
        owners = [*history.added, *history.deleted]
        if not state.persistent:
            owners += history.unchanged
        yield from (inspect(owner) for owner in owners if owner is not None)


def _may_be_part(state: InstanceState[Any], part: Part) -> bool:
    names = [name for name, _ in part.discriminators]
    if state.identity is not None and _is_set_unread(state, names):
        return True  # the database knows the old value
    now = {name: state.dict.get(name) for name in names}
    before = dict(zip(names, _key_before(state, names, tuple(now.values())), strict=True))
    return takes(part.discriminators, now) or takes(part.discriminators, before)


def _key_before(state: InstanceState[Any], names: Sequence[str], now: Identity) -> Identity:
    if _is_unchanged(state, names):
        return now
    deleted = [state.attrs[name].history.deleted for name in names]
    return tuple(old[0] if old else value for old, value in zip(deleted, now, strict=True))


def _is_set_unread(state: InstanceState[Any], names: Iterable[str]) -> bool:
    """Return whether an attribute was set while expired, so that its old value is unknown."""
    if _is_unchanged(state, names):
        return False
    histories = (state.attrs[name].history for name in names)
    return any(history.added and not history.deleted for history in histories)


def _is_unchanged(state: InstanceState[Any], names: Iterable[str]) -> bool:
    """Return whether no attribute was set: most were not, and reading a history is slow."""
    return state.committed_state.keys().isdisjoint(names)


def state_in_session(
    session: Session, mapper: Mapper[Any], identity: Identity
) -> InstanceState[Any] | None:
    """Return the state of the session's object with this primary key; loads nothing."""
    known = session.identity_map.get(mapper.identity_key_from_primary_key(identity))
    return None if known is None else instance_state(known)


@mapper_cache
def _owners_of_row(part: Part) -> Question:
    # The class of the relationship: a second class on its table has the same key.
    target = part.relationship.mapper
    detail: Any = part.alias
    if detail is not None:  # its own, which the condition of the relationship names
        owner: Any = part.owner.class_
        join = getattr(owner, part.name)
    else:
        owner, detail = aliased(part.owner.class_), aliased(target.class_)
        join = getattr(owner, part.name).of_type(detail)
    keys = [getattr(detail, name) for name in key_attributes(target)]
    rows = select(*keys, *key_columns(owner)).select_from(owner).join(join)
    return Question(keys, rows)


@mapper_cache
def _owners_referred_to(part: Part) -> Question:
    owner = part.owner.class_
    keys = [getattr(owner, name) for _, name in part.reference]
    return Question(keys, select(*keys, *key_columns(owner)))


@mapper_cache
def _rows_of(mapper: Mapper[Any]) -> tuple[Select[Any], Sequence[Any]]:
    """Return the SELECT of objects of this class alone, and the attributes of their keys."""
    eager = (relationship for relationship in mapper.relationships if relationship.lazy in _EAGER)
    options = (lazyload(getattr(mapper.class_, relationship.key)) for relationship in eager)
    return select(mapper.class_).options(*options), key_columns(mapper.class_)
