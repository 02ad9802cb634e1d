"""The objects of documents of one root in a session, by the headers to which they belong.

A lock asks it for pending changes, and lets it expire objects loaded before the lock: the identity
map keeps an object's attributes as first read, whatever a later SELECT returns.  The locking SELECT
then fills in the header, and details are loaded at their next access.  Unlike
``populate_existing``, expiring leaves every other object's pending changes alone.
``LoadedDocuments`` passes each new object to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final

from sqlalchemy.orm import InstanceState, Mapper, Session
from sqlalchemy.orm.attributes import instance_state

from ...errors import LockMisuse
from ...keys import Identity, document_label, public_key
from ...sqlalchemy_internals import deleted_states, states_to_flush
from ..documents import (
    UNKNOWN,
    HeaderResolver,
    Part,
    compares_in_python,
    has_null,
    header_identity,
    is_second_class,
    state_in_session,
)
from ..ledger import Ledger, ledger_of
from ..same_tables import classes_of_other_objects, may_share_rows
from .class_roles import Role, role_of

Unreadable = dict[Part, list[Any]]
"""By part, the objects whose part is ``lazy="raise"`` and was expired: no access loads it again."""

States = Iterable[InstanceState[Any]]

FEW: Final = 8
"""The number of freed objects that may stay on a list before it is cleaned."""


class DocumentIndex:
    """The objects of documents of one root in one session.

    Each is recorded by its headers, to find pending changes.  A loaded object is also on one list,
    which determines what the next lock does with it: examine it (``_fresh``, ``_fresh_parts``),
    leave it alone (``_held``), expire it with its document (``_headers``), or examine it after a
    flush (``_pending``).  An expired object is on none until it is loaded again.
    """

    def __init__(self, session: Callable[[], Session], root: Mapper[Any]) -> None:
        self._session = session
        self._root = root
        ledger = ledger_of(session())
        self._as_of = ledger, ledger.releases
        # By header as the session knows it: the parts.  By its own key: a new header.
        self._by_header: dict[Identity, set[InstanceState[Any]]] = {UNKNOWN: set()}
        self._fresh: list[InstanceState[Any]] = []  # loaded since the last look
        # Also loaded since the last look, by header: parts whose foreign key names it.
        self._fresh_parts: dict[Identity, list[InstanceState[Any]]] = {}
        # By header: objects of other classes that are mapped on its table.
        self._second: dict[Identity, set[InstanceState[Any]]] = {}
        # By header: objects that were loaded under an identity token.
        self._with_token: dict[Identity, set[InstanceState[Any]]] = {}
        self._held: list[InstanceState[Any]] = []  # loaded, of locked documents
        self._headers: list[InstanceState[Any]] = []  # loaded, of documents that are not locked
        self._pending: list[InstanceState[Any]] = []  # not expired, because of pending changes
        self._indirect: list[InstanceState[Any]] = []  # parts of parts, recorded by header
        # Loaded, of classes that map another object for a table of any document.
        self._others: set[InstanceState[Any]] = set()
        self._other_classes = classes_of_other_objects(root)
        self._size = 0

    def add(self, states: Collection[InstanceState[Any]]) -> None:
        """Add objects that are new, were loaded again, or were moved."""
        parts: dict[Identity, list[InstanceState[Any]]] = {}
        for state in states:
            role = role_of(self._root, state.manager.mapper)
            if role is None:
                if state.manager.mapper in self._other_classes:
                    self._add_other(state)
                continue
            # Most objects are parts that name their header: _headers_of(), without its calls.
            if role.direct is None or state.key is None or state.modified:
                self._add_one(state, role)
                continue
            header = tuple(map(state.dict.get, role.direct))
            if None in header:
                self._add_one(state, role)
            else:
                parts.setdefault(header, []).append(state)
        for header, some in parts.items():
            self._by_header[UNKNOWN].difference_update(some)
            self._by_header.setdefault(header, set()).update(some)
            self._fresh_parts.setdefault(header, []).extend(some)
        self._size += len(states)
        if self._size > FEW + 2 * len(self._session().identity_map):
            self._forget_freed()

    def _add_other(self, state: InstanceState[Any]) -> None:
        if state.key is not None and may_share_rows(self._session(), self._root, state.mapper):
            self._others.add(state)

    def pending_others(self) -> States:
        """Yield the changed objects of classes that map another object for a table."""
        session = self._session()
        return [other for other in self._others if other.obj() and _has_changes(session, other)]

    def _add_one(self, state: InstanceState[Any], role: Role) -> None:
        """Add an object whose headers must be searched for."""
        if role.header and state.key is not None and is_second_class(state.mapper, self._root):
            self._second.setdefault(header_identity(state, self._root), set()).add(state)
        if role.header and state.identity_token is not None:
            self._with_token.setdefault(header_identity(state, self._root), set()).add(state)
        headers = self._headers_to_note(state, role)
        if UNKNOWN not in headers:
            self._by_header[UNKNOWN].discard(state)
        for header in headers:
            self._by_header.setdefault(header, set()).add(state)
        if state.key is not None:
            self._fresh.append(state)

    def _headers_of(self, state: InstanceState[Any], role: Role) -> Collection[Identity]:
        """Return the headers of a part, as far as loaded attributes name them."""
        if role.direct is None or state.key is None or state.modified:
            return HeaderResolver(self._session(), self._root, ask=False).headers(state)
        header = _named_owner(role.parts[0], state.dict)
        return () if has_null(header) else (header,)

    def _headers_to_note(self, state: InstanceState[Any], role: Role) -> Collection[Identity]:
        """Return the headers under which to record an object: for a new header, its own key.

        A part of a part changes its document when its owner moves, which nothing reports.
        """
        headers = {*self._headers_of(state, role)} if role.parts else set[Identity]()
        if role.header and state.key is None:
            headers.add(header_identity(state, self._root))
        if role.parts and role.direct is None and not _has_new_owner(state, role):
            if not self.are_fresh(headers):
                return (UNKNOWN,)
            self._indirect.append(state)  # nobody else moves its owner while the lock is held
        return headers

    def are_fresh(self, headers: Collection[Identity]) -> bool:
        """Return whether all these documents are held, and were read after the grant."""
        entity, ledger = self._root.class_, ledger_of(self._session())
        return bool(headers) and all(ledger.is_fresh((entity, header)) for header in headers)

    def note_flush(self) -> None:
        """Look again at the objects that had pending changes."""
        self._fresh += self._pending
        self._pending.clear()

    def pending(self, identities: Iterable[Identity]) -> States:
        """Yield the changed objects that may be header or part of these documents."""
        session = self._session()
        new, modified, deleted = states_to_flush(session)
        if not (new or modified or deleted):
            return
        self._note_releases()
        unknown = self._by_header[UNKNOWN]
        # Each intersection iterates over the smaller set, which is usually empty.
        found = {*(modified & unknown), *(deleted & unknown), *(new & unknown)}
        identities = [*identities]
        found.update(*map(self.objects_of_row, identities))
        found.update(*filter(None, map(self._by_header.get, identities)))
        found.update(*_parts_of_others(self._root, ledger_of(session), self._by_header))
        for state in found:
            # Not state.modified, which stays true for objects that were freed or expunged.
            changed = state in modified and session.is_modified(state.obj())
            if changed or state in deleted or state in new:
                yield state

    def refuse_other_tokens(
        self, identities: Collection[Identity] | None, token: object = None
    ) -> None:
        """Refuse the lock of a row that the session has under another identity token.

        Only the program knows whether it is the same row or another tenant's.

        :param identities: the keys of the headers; None: every document of this root.
        :param token: that of the object which the lock reads.
        :raises LockMisuse: the session has such an object.
        """
        for identity, states in self._with_token.items():
            for state in states if identities is None or identity in identities else ():
                self._refuse_other_token(state, token)
        if token is not None:
            for identity in identities or ():
                found = state_in_session(self._session(), self._root, identity)
                if found is not None:
                    self._refuse_other_token(found, token)

    def _refuse_other_token(self, state: InstanceState[Any], token: object) -> None:
        other = state.identity_token
        if other != token and self._session().identity_map.contains_state(state):
            raise LockMisuse(
                f"the lock reads {document_label(state.class_, public_key(state.identity or ()))} "
                f"under the identity token {token!r}, and the session also has it under "
                f"{other!r}: if both are one row, one of the objects would keep old values. "
                "Expunge the other object, or use a session for each"
            )

    def objects_of_row(self, identity: Identity) -> Iterator[InstanceState[Any]]:
        """Yield the objects of the header's row, of each class mapped to its table."""
        found = state_in_session(self._session(), self._root, identity)
        if found is not None:
            yield found
        yield from self._second.get(identity, ())

    def expire(
        self, identities: Collection[Identity] | None, *, parts_alone: bool = False
    ) -> Unreadable:
        """Expire the loaded objects of these documents.

        Documents that are already held keep their attributes: no other transaction can have changed them.
        A detail of a document that is *not* held is expired too, because it may have been moved to
        one that is being locked; its collection is expired with it, so that details are not loaded
        one by one.

        :param identities: the keys of the headers; None: every document of this root.
        :param parts_alone: the headers themselves have been read under their locks.
        :returns: the objects to load again under the lock.
        """
        self._note_releases()
        unreadable: Unreadable = {}
        for state in self._others:
            self._expire_loaded(state, None)
        for state in self._take_fresh():
            role = role_of(self._root, state.manager.mapper)
            if role is not None:
                self._expire_fresh(state, role, identities, unreadable)
        if identities is None:
            headers, self._headers = self._headers, []
            headers += chain.from_iterable(self._second.values())
        else:
            headers = [*chain.from_iterable(map(self.objects_of_row, identities))]
        for header in headers:
            if parts_alone:
                self._expire_collections_of(header, unreadable)
            elif not self.are_fresh([header_identity(header, self._root)]):
                self._expire(header, unreadable)
        return unreadable

    def _note_releases(self) -> None:
        """Look again at objects of locked documents if locks were released since."""
        ledger = ledger_of(self._session())
        known, releases = self._as_of
        if known is ledger and releases == ledger.releases:
            return
        self._as_of = ledger, ledger.releases
        # A rollback to a savepoint may have expired the attributes that name the headers.
        self._fresh += chain(self._held, *self._fresh_parts.values())
        self._by_header[UNKNOWN].update(self._indirect)
        for objects in (self._held, self._fresh_parts, self._indirect):
            objects.clear()

    def _take_fresh(self) -> list[InstanceState[Any]]:
        fresh, self._fresh = self._fresh, []
        for header, parts in self._fresh_parts.items():
            held = ledger_of(self._session()).is_fresh((self._root.class_, header))
            (self._held if held else fresh).extend(parts)
        self._fresh_parts.clear()
        return fresh

    def _expire_collections_of(self, header: InstanceState[Any], unreadable: Unreadable) -> None:
        """Expire the parts of a fresh header, except changed ones."""
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
        # A part is fresh if all its headers are locked, and were locked when it was loaded.
        if role.parts and not self.are_fresh(self._headers_of(state, role)):
            self._expire_collections_with(state, role)
            self._expire(state, unreadable)
            return
        own = header_identity(state, self._root) if role.header else UNKNOWN
        if role.header and not self.are_fresh([own]):
            self._headers.append(state)
            if identities is not None and own not in identities:
                self._expire_loaded(state, role.collections)
        else:
            self._held.append(state)

    def _expire_collections_with(self, state: InstanceState[Any], role: Role) -> None:
        """Expire the collections with this object; otherwise their members would be read one by one."""
        session = self._session()
        for part in role.parts:
            identity = _named_owner(part, state.dict)
            above = state_in_session(session, part.owner, identity) if identity else None
            if above is None or part.name not in above.dict:
                continue
            may_load = role_of(self._root, above.mapper)
            held = ledger_of(self._session()).is_fresh((self._root.class_, above.identity or ()))
            if may_load is not None and part.name in may_load.collections and not held:
                self._expire_loaded(above, (part.name,))

    def _expire(self, state: InstanceState[Any], unreadable: Unreadable) -> None:
        role = role_of(self._root, state.mapper)
        loaded = state.dict
        for part in role.raising if role is not None else ():
            if part.name in loaded:
                unreadable.setdefault(part, []).append(state.obj())
        if not self._expire_loaded(state, None):
            self._pending.append(state)
        elif role is not None and role.parts:
            # Before it is read again, others may move it, and this session may change it.
            self._by_header[UNKNOWN].add(state)

    def _expire_loaded(self, state: InstanceState[Any], only: Collection[str] | None) -> bool:
        """Expire these attributes, or all, as far as they are loaded; return False if there are
        changes.
        """
        # By name: expire(instance) follows the "refresh-expire" cascade and drops pending changes
        # there, and a deferred column that was never loaded must stay deferred.
        session, mapped = self._session(), state.mapper.attrs if only is None else only
        loaded = [key for key in state.dict if key in mapped]
        instance = state.obj()
        if not loaded or instance is None or not session.identity_map.contains_state(state):
            return True
        if _has_changes(session, state):
            return False
        session.expire(instance, loaded)
        # expire(instance) sets this too: Session.get() then checks that the row exists.
        state.expired = state.expired or only is None
        return True

    def _forget_freed(self) -> None:
        unknown = set(_alive(self._by_header[UNKNOWN]))
        self._by_header = {**_without_freed(self._by_header), UNKNOWN: unknown}
        self._second = _without_freed(self._second)
        self._with_token = _without_freed(self._with_token)
        self._others = set(_alive(self._others))
        lists = self._fresh, self._held, self._headers, self._pending, self._indirect
        for part in (*lists, *self._fresh_parts.values()):
            part[:] = _alive(part)
        self._size = sum(map(len, self._by_header.values()))


def _parts_of_others(
    root: Mapper[Any], ledger: Ledger, by_header: Mapping[Identity, set[InstanceState[Any]]]
) -> Iterator[set[InstanceState[Any]]]:
    """Yield the parts of unlocked documents, whose key the database may consider equal."""
    if compares_in_python(root):
        return
    for header, states in by_header.items():
        if (root.class_, header) not in ledger.held:
            yield states


def _named_owner(part: Part, loaded: Mapping[str, Any]) -> Identity:
    if part.foreign_key is None or not loaded.keys() >= {*part.foreign_key}:
        return UNKNOWN
    return tuple([loaded[name] for name in part.foreign_key])


def _has_new_owner(state: InstanceState[Any], role: Role) -> bool:
    """Return whether a new part belongs to a new part, with which it will be found."""
    if state.key is not None:
        return False
    names = chain.from_iterable(part.backrefs for part in role.parts)
    owners = [owner for name in names if (owner := state.dict.get(name)) is not None]
    return bool(owners) and all(instance_state(owner).key is None for owner in owners)


def _has_changes(session: Session, state: InstanceState[Any]) -> bool:
    modified = state.modified and session.is_modified(state.obj())
    return modified or state in deleted_states(session)


def _alive(states: States) -> list[InstanceState[Any]]:
    return [state for state in dict.fromkeys(states) if state.obj() is not None]


def _without_freed(
    index: Mapping[Identity, set[InstanceState[Any]]],
) -> dict[Identity, set[InstanceState[Any]]]:
    return {key: alive for key, states in index.items() if (alive := set(_alive(states)))}
