"""The objects of documents in a session, each looked at once for each time that it is loaded.

A lock has to know what the session has of its document, and what else may have become a part of
it.  To look through all of the session for that would make each lock slower than the one before.
So objects are put in order as they come: new entries stand at the end of the identity map, and
events tell of the others.  The cost of a lock depends on its document, and on what came since the
last lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from itertools import chain
from threading import Lock
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import event
from sqlalchemy.orm import InstanceState, Mapper, Session
from sqlalchemy.orm.attributes import instance_state

from ..documents import (
    UNKNOWN,
    HeaderResolver,
    Part,
    compares_in_python,
    has_null,
    header_identity,
    is_header,
    is_row_of_root,
    is_second_class,
    key_attributes,
    loaded_headers,
    loaded_owner,
    mapper_cache,
    parts_of,
    parts_with_detail,
)
from ..ledger import Ledger
from ..lock_info import Identity
from ..session_ref import session_ref
from ..sqlalchemy_internals import allow_listening, deleted_states, modified_states, new_states

Unreadable = dict[Part, list[Any]]
"""By part, the objects whose part is ``lazy="raise"`` and was expired: no access loads it again."""

States = Iterable[InstanceState[Any]]

_RAISING: Final = ("raise", "raise_on_sql")
_FEW: Final = 8  # objects that were freed may stay on the lists


class Role(NamedTuple):
    """The role of the objects of one class in the documents of one root.

    :ivar header: they are headers.
    :ivar parts: what they can be parts of.
    :ivar direct: the foreign key that names the header, where they are parts of it and no other.
    :ivar collections: the attributes that lead to their parts, and that load themselves.
    :ivar raising: the parts that no access loads.
    """

    header: bool
    parts: tuple[Part, ...]
    direct: tuple[str, ...] | None
    collections: frozenset[str]
    raising: tuple[Part, ...]


@mapper_cache
def role_of(root: Mapper[Any], mapper: Mapper[Any]) -> Role | None:
    """Return what objects of this class are in documents of this root; None for nothing."""
    header, parts = is_row_of_root(mapper, root), parts_with_detail(root, mapper)
    if not (header or parts):
        return None
    _listen_to_parts(parts)  # of a second class on the table too
    below = {part.name: part for part in parts_of(root) if _may_own(mapper, part)}
    raising = {name: part for name, part in below.items() if part.relationship.lazy in _RAISING}
    direct = parts[0].foreign_key if len(parts) == 1 and is_header(root, parts[0].owner) else None
    names = frozenset(below.keys() - raising)
    return Role(header, parts, direct, names, tuple(raising.values()))


@mapper_cache
def role_raises(root: Mapper[Any]) -> bool:
    """Return whether headers of this root have parts that no access loads."""
    roles = (role_of(root, mapper) for mapper in root.self_and_descendants)
    return any(role is not None and role.raising for role in roles)


def _may_own(mapper: Mapper[Any], part: Part) -> bool:
    related = mapper.isa(part.owner) or part.owner.isa(mapper)
    return related and part.name in mapper.relationships


class LoadedDocuments:
    """The objects of documents in one session, for the locks that it takes.

    It knows of none before the first call of ``of()``, which most sessions never need.
    """

    added = False
    """True if an object was ever added to the session."""

    _before_flush: Callable[[], None] | None = None

    def __init__(self, session: Callable[[], Session], ledger: Ledger) -> None:
        self._session = session
        self._ledger = ledger
        self._by_root: dict[Mapper[Any], DocumentIndex] = {}
        self._noted: list[InstanceState[Any]] = []
        # Keys in the identity map that were seen, by their ids.  One of an object that was freed,
        # and comes again, is another tuple.
        self._seen: dict[int, Any] = {}

    def note_added(self, state: InstanceState[Any]) -> None:
        """Note an object that was added."""
        self.added = True
        self.note(state)

    def note(self, state: InstanceState[Any]) -> None:
        """Note an object that was added, loaded again or moved to another owner."""
        if self._by_root:
            self._noted.append(state)

    def note_again(self, state: InstanceState[Any]) -> None:
        """Note an object that has come back, to another place of the identity map."""
        self._seen.pop(id(state.key), None)

    def had(self, state: InstanceState[Any]) -> bool:
        """Return whether the session had this object when ``of()`` was called last."""
        return id(state.key) in self._seen

    def note_flush(self) -> None:
        """Note that what had pending changes may have none from now on."""
        for index in self._by_root.values():
            index.note_flush()
        if self._before_flush is not None:
            self._before_flush()

    @contextmanager
    def calling_before_flush(self, function: Callable[[], None]) -> Iterator[None]:
        """Return a block in which this is called before each flush, in place of that of an outer block."""
        outer, self._before_flush = self._before_flush, function
        try:
            yield
        finally:
            self._before_flush = outer

    def forget(self) -> None:
        """Forget the objects, of which the session has none any more."""
        self._by_root.clear()
        self._noted.clear()
        self._seen.clear()

    def of(self, root: Mapper[Any]) -> DocumentIndex:
        """Return the objects of documents of this root."""
        session = self._session()
        come = self._arrived(session)
        if self._noted:
            come += self._noted
            self._noted = []
        if come:
            for known in self._by_root.values():
                known.add(come)
        index = self._by_root.get(root)
        if index is None:
            _listen_to(root)
            _by_session[session] = self
            index = self._by_root[root] = DocumentIndex(session, self._ledger, root)
            index.add([*session.identity_map.all_states(), *new_states(session)])
        return index

    def _arrived(self, session: Session) -> list[InstanceState[Any]]:
        """Return the states that came to the identity map since the last call."""
        seen, known = self._seen, session.identity_map
        keys: Any = known.keys()
        arrived = []
        try:
            for key in reversed(keys):
                if id(key) in seen:
                    break
                arrived.append(key)
        except RuntimeError:  # an object was freed meanwhile
            arrived = list(keys)
        if not arrived:
            return arrived
        if len(seen) > _FEW + 2 * len(known):
            seen.clear()
            seen.update((id(key), key) for key in list(keys))
        seen.update(zip(map(id, arrived), arrived, strict=True))
        return [state for state in map(known.fast_get_state, arrived) if state is not None]


class DocumentIndex:
    """The objects of documents of one root in one session."""

    def __init__(self, session: Session, ledger: Ledger, root: Mapper[Any]) -> None:
        self._session = session_ref(session)
        self._ledger = ledger
        self._root = root
        self._releases = ledger.releases
        # By header, as the session knows it, the parts; and new headers, by their own key.
        self._by_header: dict[Identity, set[InstanceState[Any]]] = {UNKNOWN: set()}
        self._fresh: list[InstanceState[Any]] = []  # loaded since they were looked at
        # Loaded since, too: the parts whose foreign key names the header, by that header.
        self._fresh_parts: dict[Identity, list[InstanceState[Any]]] = {}
        # By header, the objects of other classes that are mapped on its table.
        self._second: dict[Identity, set[InstanceState[Any]]] = {}
        self._held: list[InstanceState[Any]] = []  # loaded, and nobody else can change them
        self._headers: list[InstanceState[Any]] = []  # loaded, of documents that are not held
        self._pending: list[InstanceState[Any]] = []  # not expired, because of pending changes
        self._size = 0

    def add(self, states: Collection[InstanceState[Any]]) -> None:
        """Add objects that have come, were loaded again, or were moved."""
        parts: dict[Identity, list[InstanceState[Any]]] = {}
        for state in states:
            role = role_of(self._root, state.manager.mapper)
            if role is None:
                continue
            # Most are parts that name their header: for these the answer of _headers_of(),
            # without its calls.
            if role.direct is None or state.key is None or state.modified:
                self._add_one(state, role)
                continue
            header = tuple(map(state.dict.get, role.direct))
            if None in header:
                self._add_one(state, role)
            else:
                parts.setdefault(header, []).append(state)
        self._add_parts(parts)
        self._size += len(states)
        if self._size > _FEW + 2 * len(self._session().identity_map):
            self._forget_freed()

    def _add_parts(self, parts: Mapping[Identity, Collection[InstanceState[Any]]]) -> None:
        """Add parts by the headers that they name."""
        for header, some in parts.items():
            self._by_header[UNKNOWN].difference_update(some)
            self._by_header.setdefault(header, set()).update(some)
            self._fresh_parts.setdefault(header, []).extend(some)

    def _add_one(self, state: InstanceState[Any], role: Role) -> None:
        """Add an object whose headers have to be searched for."""
        if role.header and state.key is not None and is_second_class(state.mapper, self._root):
            self._second.setdefault(header_identity(state, self._root), set()).add(state)
        headers = self._headers_of(state, role)
        if UNKNOWN not in headers:
            self._by_header[UNKNOWN].discard(state)
        for header in headers:
            self._by_header.setdefault(header, set()).add(state)
        if state.key is not None:
            self._fresh.append(state)

    def _headers_of(self, state: InstanceState[Any], role: Role) -> Collection[Identity]:
        if state.key is not None and not state.modified:
            return self._known_headers(state, role) if role.parts else ()
        headers: set[Identity] = set()
        if role.parts:
            headers.update(HeaderResolver(self._session(), self._root, ask=False).headers(state))
        if role.header and state.key is None:
            headers.add(header_identity(state, self._root))
        return headers

    def _known_headers(self, state: InstanceState[Any], role: Role) -> Collection[Identity]:
        """Return the headers of a part, as what is loaded tells them."""
        loaded = state.dict
        if role.direct is None:
            return list(loaded_headers(self._session(), self._root, state.mapper, loaded))
        try:
            header = tuple([loaded[name] for name in role.direct])
        except KeyError:
            return (UNKNOWN,)
        return () if has_null(header) else (header,)

    def note_flush(self) -> None:
        """Look again at what had pending changes."""
        self._fresh += self._pending
        self._pending.clear()

    def pending(self, identities: Iterable[Identity]) -> States:
        """Return what has pending changes, and may be header or part of these documents."""
        session = self._session()
        changes = modified_states(session), deleted_states(session), new_states(session)
        return self._pending_of(identities, *changes) if any(changes) else ()

    def _pending_of(
        self,
        identities: Iterable[Identity],
        modified: AbstractSet[InstanceState[Any]],
        deleted: AbstractSet[InstanceState[Any]],
        new: AbstractSet[InstanceState[Any]],
    ) -> States:
        session, found = self._session(), set[InstanceState[Any]]()
        for some in (modified, deleted, new):
            found |= _in_both(some, self._by_header[UNKNOWN])
        found.update(*self._parts_of_others())
        for identity in identities:
            found.update(self._by_header.get(identity, ()))
            found.update(self._headers_of_row(identity))
        for state in found:
            changed = state in modified and session.is_modified(state.obj())
            if changed or state in deleted or state in new:
                yield state

    def _parts_of_others(self) -> Iterator[set[InstanceState[Any]]]:
        """Yield the parts of documents not held, where the database may know them by another key."""
        if compares_in_python(self._root):
            return
        held, entity = self._ledger.held, self._root.class_
        for header, states in self._by_header.items():
            if (entity, header) not in held:
                yield states

    def _headers_of_row(self, identity: Identity) -> Iterator[InstanceState[Any]]:
        """Yield the objects of the header's row: of each class that is mapped on its table."""
        key = self._root.identity_key_from_primary_key(identity)
        found = self._session().identity_map.get(key)
        if found is not None:
            yield instance_state(found)
        yield from self.second_objects(identity)

    def second_objects(self, identity: Identity) -> Collection[InstanceState[Any]]:
        """Return the objects of the header's row whose classes are not of its hierarchy."""
        return self._second.get(identity, ())

    def expire(
        self, identities: Collection[Identity] | None, *, parts_alone: bool = False
    ) -> Unreadable:
        """Expire what may be older than the locks of these documents; see expire_documents().

        :param parts_alone: the headers themselves have been read under their locks.
        """
        if self._releases != self._ledger.releases:
            self._releases = self._ledger.releases
            # A rollback to a savepoint may have expired what named the headers.
            self._fresh += chain(self._held, *self._fresh_parts.values())
            self._held.clear()
            self._fresh_parts.clear()
        unreadable: Unreadable = {}
        for state in self._take_fresh():
            role = role_of(self._root, state.manager.mapper)
            if role is not None:
                self._expire_fresh(state, role, identities, unreadable)
        if identities is None:
            headers, self._headers = self._headers, []
            for state in chain(headers, *self._second.values()):
                self._expire_header(state, unreadable)
        else:
            for header in chain.from_iterable(map(self._headers_of_row, identities)):
                if parts_alone:
                    self._expire_collections_of(header, unreadable)
                else:
                    self._expire_header(header, unreadable)
        return unreadable

    def _take_fresh(self) -> list[InstanceState[Any]]:
        """Return what was loaded since the last look, except parts of documents that are held."""
        fresh, self._fresh = self._fresh, []
        for header, parts in self._fresh_parts.items():
            held = self._ledger.is_fresh((self._root.class_, header))
            (self._held if held else fresh).extend(parts)
        self._fresh_parts.clear()
        return fresh

    def _expire_header(self, state: InstanceState[Any], unreadable: Unreadable) -> None:
        if not self._is_fresh_header(state):
            self._expire(state, unreadable)

    def _is_fresh_header(self, state: InstanceState[Any]) -> bool:
        return self._ledger.is_fresh((self._root.class_, header_identity(state, self._root)))

    def _expire_collections_of(self, header: InstanceState[Any], unreadable: Unreadable) -> None:
        """Expire the parts of a header that is fresh itself, except where they have changes."""
        role = role_of(self._root, header.mapper)
        instance = header.obj()
        if role is None or instance is None:
            return
        unchanged = header.dict.keys() - header.committed_state.keys()
        raising = [part for part in role.raising if part.name in unchanged]
        for part in raising:
            unreadable.setdefault(part, []).append(instance)
        names = (role.collections & unchanged).union(part.name for part in raising)
        if names:
            self._session().expire(instance, names)

    def _expire_fresh(
        self,
        state: InstanceState[Any],
        role: Role,
        identities: Collection[Identity] | None,
        unreadable: Unreadable,
    ) -> None:
        """Expire an object that was loaded without the lock of its document."""
        if role.parts and not self._is_fresh_part(state, role):
            self._expire_collections_with(state, role)
            self._expire(state, unreadable)
            return
        if role.header and not self._is_fresh_header(state):
            self._headers.append(state)
            if identities is not None and header_identity(state, self._root) not in identities:
                _expire_loaded(self._session(), state, role.collections)
        else:
            self._held.append(state)

    def _is_fresh_part(self, state: InstanceState[Any], role: Role) -> bool:
        """Return whether all its headers are held, and were so when it was loaded."""
        headers = self._known_headers(state, role)
        return bool(headers) and all(
            self._ledger.is_fresh((self._root.class_, header)) for header in headers
        )

    def _expire_collections_with(self, state: InstanceState[Any], role: Role) -> None:
        """Expire the collections that have it: else their members come back one by one."""
        session = self._session()
        for part in role.parts:
            identity = loaded_owner(part, state.dict)
            key = part.owner.identity_key_from_primary_key(identity) if identity else None
            owner = None if key is None else session.identity_map.get(key)
            if owner is None:
                continue
            above = instance_state(owner)
            may_load = role_of(self._root, above.mapper)
            held = self._ledger.is_fresh((self._root.class_, above.identity or ()))
            if may_load is not None and part.name in may_load.collections and not held:
                _expire_loaded(session, above, (part.name,))

    def _expire(self, state: InstanceState[Any], unreadable: Unreadable) -> None:
        role = role_of(self._root, state.mapper)
        loaded = state.dict
        for part in role.raising if role is not None else ():
            if part.name in loaded:
                unreadable.setdefault(part, []).append(state.obj())
        if not _expire_loaded(self._session(), state, None):
            self._pending.append(state)
        elif role is not None and role.parts:
            # It may be moved by others, and be changed here, before it is read again.
            self._by_header[UNKNOWN].add(state)

    def _forget_freed(self) -> None:
        unknown = set(_alive(self._by_header[UNKNOWN]))
        self._by_header = {**_without_freed(self._by_header), UNKNOWN: unknown}
        self._second = _without_freed(self._second)
        for one in (
            self._fresh,
            *self._fresh_parts.values(),
            self._held,
            self._headers,
            self._pending,
        ):
            one[:] = _alive(one)
        self._size = sum(map(len, self._by_header.values()))


def _alive(states: States) -> list[InstanceState[Any]]:
    return [state for state in states if state.obj() is not None]


def _without_freed(
    index: Mapping[Identity, set[InstanceState[Any]]],
) -> dict[Identity, set[InstanceState[Any]]]:
    return {key: alive for key, states in index.items() if (alive := set(_alive(states)))}


def _in_both(some: AbstractSet[Any], others: AbstractSet[Any]) -> set[Any]:
    """Return the intersection, by going through the smaller one, which is mostly empty."""
    if isinstance(some, set):
        return some.intersection(others)
    small, large = (some, others) if len(some) < len(others) else (others, some)
    return {one for one in small if one in large}


def _expire_loaded(
    session: Session, state: InstanceState[Any], only: Collection[str] | None
) -> bool:
    """Expire these attributes, or all, as far as they are loaded; return False where it may not."""
    # Named, for two reasons: expire(instance) goes down the "refresh-expire" cascade and
    # drops pending changes there, and a deferred column never loaded stays deferred.
    mapped = state.mapper.attrs if only is None else only
    loaded = [key for key in state.dict if key in mapped]
    instance = state.obj()
    if not loaded or instance is None or not session.identity_map.contains_state(state):
        return True
    if _is_pending(session, instance, state):
        return False
    session.expire(instance, loaded)
    # Not named, it would be so by itself: Session.get() then looks whether the row is there.
    state.expired = state.expired or only is None
    return True


def _is_pending(session: Session, instance: Any, state: InstanceState[Any]) -> bool:
    modified = state.modified and session.is_modified(instance)
    return modified or state in deleted_states(session)


# Events of the classes of documents that were locked.

# Global, since a listener is given the session alone, whose info is the program's.
# Threads: a session is used by one thread at a time, and each use is one operation of a dict,
# which is atomic.
_by_session: WeakKeyDictionary[Session, LoadedDocuments] = WeakKeyDictionary()

# Global, as mapped classes are: each attribute is listened to once, for all sessions of the process.
# Threads: read and changed under the lock.
_followed: WeakKeyDictionary[type[Any], set[str]] = WeakKeyDictionary()
_following = Lock()  # a thread that finds a class followed must find its listeners, too


@mapper_cache
def _listen_to(root: Mapper[Any]) -> None:
    """Have the sessions note the objects of these documents that are loaded again, or moved."""
    keys, parts = key_attributes(root), parts_of(root)
    with _following:
        _listen_once(root, keys)
    _listen_to_parts(parts)


def _listen_to_parts(parts: Iterable[Part]) -> None:
    with _following:
        for part in parts:
            _listen_once(part.detail, part.foreign_key or (name for name, _ in part.reference))
            _listen_once(part.detail, part.backrefs)


def _listen_once(mapper: Mapper[Any], names: Iterable[str]) -> None:
    entity, all_of_them = mapper.class_, tuple(mapper.self_and_descendants)
    if entity not in _followed:
        _followed[entity] = set()
        allow_listening((one.class_manager for one in all_of_them), "refresh")
        event.listen(entity, "refresh", _note, raw=True, propagate=True)
    for name in set(names).difference(_followed[entity]):
        _followed[entity].add(name)
        allow_listening((getattr(one.class_, name) for one in all_of_them), "set")
        event.listen(getattr(entity, name), "set", _note, raw=True, propagate=True)


def _note(state: InstanceState[Any], *_: object) -> None:
    """Note that it was loaded again, or that what names its owner was set."""
    session = state.session
    loaded = None if session is None else _by_session.get(session)
    if loaded is not None:
        loaded.note(state)
