"""The objects of documents in a session, each examined once for each time that it is loaded.

A lock needs the session's objects of its document, and objects that may have become its parts.
Searching the whole session would make each lock slower than the one before.  So objects are sorted
as they arrive: new entries are at the end of the identity map, and events report the others.  The
cost of a lock depends on its document, and on the objects that arrived since the last lock.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.orm import InstanceState, LoaderCallableStatus, Mapper, Session

from ...sqlalchemy_internals import new_states
from ..documents import key_attributes, mapper_cache
from ..ledger import ledger_of
from .class_roles import note_objects, role_of
from .document_index import FEW, DocumentIndex


class LoadedDocuments:
    """The objects of documents in one session, for the locks that it takes: none before the first ``of()``."""

    __slots__ = "__weakref__", "_by_root", "_noted", "_seen", "_session"

    def __init__(self, session: Callable[[], Session]) -> None:
        self._session = session
        self._by_root: dict[Mapper[Any], DocumentIndex] = {}
        self._noted: list[InstanceState[Any]] = []
        # The seen keys of the identity map, by id: an object that is loaded again has a new key
        # tuple.
        self._seen: dict[int, Any] = {}

    def note(self, state: InstanceState[Any]) -> None:
        """Note an object that was added, loaded again or moved to another owner."""
        if self._by_root:
            self._noted.append(state)

    def note_again(self, state: InstanceState[Any]) -> None:
        """Note an object that has returned, at another place of the identity map."""
        self._seen.pop(id(state.key), None)

    def expire_attached(self, state: InstanceState[Any]) -> None:
        """Expire the attributes of a detached object, if it belongs to a document that may be locked.

        It is unknown when it was read.  Pending changes stay, and so do collections, through which
        ``add()`` reaches other objects; so does a changed or deleted object's version: the flush
        raises StaleDataError if the row has another since.
        """
        roots = [inspect(entity).mapper for entity in ledger_of(self._session()).classes]
        roles = [role for root in roots if (role := role_of(root, state.mapper)) is not None]
        if roles:
            changed = state.committed_state
            kept = {*changed, _version_of(state.mapper)}
            names = (state.mapper.column_attrs.keys() & state.dict.keys()) - kept
            if names:  # no names would mean all
                self._session().expire(state.obj(), names)
            # If its foreign key was changed, the row's document is unknown too.
            foreign = chain.from_iterable(part.attributes for role in roles for part in role.parts)
            for name in (changed.keys() & set(foreign)).difference(key_attributes(state.mapper)):
                changed[name] = LoaderCallableStatus.NO_VALUE

    def had(self, state: InstanceState[Any]) -> bool:
        """Return whether the session had this object at the last ``of()``."""
        return id(state.key) in self._seen

    def note_flush(self) -> None:
        """Note that objects with pending changes may have none from now on."""
        for index in self._by_root.values():
            index.note_flush()

    def forget(self) -> None:
        """Forget all objects: the session has none now."""
        self._by_root.clear()
        self._noted.clear()
        self._seen.clear()

    def of(self, root: Mapper[Any]) -> DocumentIndex:
        """Return the objects of documents of this root."""
        session = self._session()
        arrived = self._arrived(session)
        if self._noted:
            arrived += self._noted
            self._noted = []
        if arrived:
            for known in self._by_root.values():
                known.add(arrived)
        index = self._by_root.get(root)
        if index is None:
            note_objects(session, root, self.note)
            index = self._by_root[root] = DocumentIndex(self._session, root)
            index.add([*session.identity_map.all_states(), *new_states(session)])
        return index

    def _arrived(self, session: Session) -> list[InstanceState[Any]]:
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
        if len(seen) > FEW + 2 * len(known):
            seen.clear()
            seen.update((id(key), key) for key in list(keys))
        seen.update(zip(map(id, arrived), arrived, strict=True))
        return [state for state in map(known.fast_get_state, arrived) if state is not None]


@mapper_cache
def _version_of(mapper: Mapper[Any]) -> str | None:
    column = mapper.version_id_col
    return None if column is None else mapper.get_property_by_column(column).key
