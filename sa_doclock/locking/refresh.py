"""The session's copies of a document are expired, so that nothing read is older than the lock.

The identity map keeps an object's attributes as they were read first, whatever a later
SELECT returns.  So the header, its collections and its details are expired before the
locking SELECT, which then fills in the header; details come with their next access.
Expiring, unlike ``populate_existing``, leaves every other object's pending changes alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from sqlalchemy import inspect
from sqlalchemy.orm import InstanceState, Mapper, Session

from ..documents import (
    UNKNOWN,
    HeaderResolver,
    Part,
    header_identity,
    loaded_headers,
    mapper_cache,
    parts_of,
    parts_with_detail,
    root_of,
)
from ..errors import UnsavedChanges
from ..lock_info import DocumentKey
from ..options import LockOptions

Held = Mapping[DocumentKey, LockOptions]
Unreadable = dict[Part, list[Any]]
"""By part, the objects whose part is ``lazy="raise"`` and was expired: no access loads it again."""

_ALL: Final = None  # in place of names: all attributes that are loaded
_RAISING: Final = ("raise", "raise_on_sql")
_NONE: Final[frozenset[str]] = frozenset()


def expire_documents(
    session: Session,
    root: Mapper[Any],
    identities: Collection[tuple[Any, ...]] | None,
    held: Held,
) -> Unreadable:
    """Expire what the session has loaded of these documents.

    Documents held already, which nobody else can have changed, keep what was loaded.  A
    detail of a document that is *not* held is expired too, since it may have been moved to
    one that is being locked; so that it does not come back one SELECT a detail, the
    collection it was in is expired with it.

    :param identities: the keys of the headers; None for every document of this root.
    :returns: what is to be loaded again under the lock.
    """
    unreadable: Unreadable = {}
    for state in session.identity_map.all_states():
        role = _role(root, state.mapper)
        if role is None:
            continue
        names = _names_to_expire(session, root, identities, held, state, role)
        if names is _ALL:
            for part in role.raising:
                if part.name in state.dict:
                    unreadable.setdefault(part, []).append(state.obj())
        if names is _ALL or names:
            _expire_loaded(session, state, names)
    return unreadable


def _names_to_expire(
    session: Session,
    root: Mapper[Any],
    identities: Collection[tuple[Any, ...]] | None,
    held: Held,
    state: InstanceState[Any],
    role: _Role,
) -> Collection[str] | None:
    """Return the attributes of one object that may be older than the lock."""
    if role.part:
        headers = list(loaded_headers(session, root, state.mapper, state.dict))
        if not headers or any((root.class_, header) not in held for header in headers):
            return _ALL
    if not role.header or (root.class_, state.identity) in held:
        return _NONE
    return _ALL if identities is None or state.identity in identities else role.collections


class _Role(NamedTuple):
    """The role of the objects of one class in the documents of one root.

    :ivar header: they are headers.
    :ivar part: they are parts.
    :ivar collections: the attributes that lead to their parts, and that load themselves.
    :ivar raising: the parts that no access loads.
    """

    header: bool
    part: bool
    collections: frozenset[str]
    raising: tuple[Part, ...]


@mapper_cache
def _role(root: Mapper[Any], mapper: Mapper[Any]) -> _Role | None:
    """Return what objects of this class are in documents of this root; None for nothing."""
    header, part = root_of(mapper) is root, bool(parts_with_detail(root, mapper))
    if not (header or part):
        return None
    related = (one for one in parts_of(root) if mapper.isa(one.owner) or one.owner.isa(mapper))
    below = [one for one in related if one.name in mapper.relationships]
    raising = {one.name: one for one in below if one.relationship.lazy in _RAISING}
    names = frozenset(one.name for one in below)
    return _Role(header, part, names.difference(raising), tuple(raising.values()))


def _expire_loaded(
    session: Session, state: InstanceState[Any], only: Collection[str] | None
) -> None:
    # Named, for two reasons: expire(instance) goes down the "refresh-expire" cascade and
    # drops pending changes there, and a deferred column never loaded stays deferred.
    mapped = state.mapper.attrs if only is None else only
    loaded = [key for key in state.dict if key in mapped]
    instance = state.obj()
    if loaded and instance is not None and not _is_pending(session, instance, state):
        session.expire(instance, loaded)
        # Not named, it would be so by itself: Session.get() then looks whether the row is there.
        state.expired = state.expired or only is None


def _is_pending(session: Session, instance: Any, state: InstanceState[Any]) -> bool:
    modified = state.modified and session.is_modified(instance)
    return modified or instance in session.deleted


def forget_vanished(session: Session, mapper: Mapper[Any], identity: tuple[Any, ...]) -> None:
    """Take an object whose row is gone out of the session, as ``Session.get()`` does."""
    header = session.identity_map.get(mapper.identity_key_from_primary_key(identity))
    if header is not None:
        session.expire(header)
        with session.no_autoflush:
            session.get(mapper.class_, identity)


def refuse_unsaved(
    session: Session,
    root: Mapper[Any],
    identities: Collection[tuple[Any, ...]],
    *,
    ask: bool = False,
) -> bool:
    """Check that none of these documents has pending changes in the session.

    :param ask: whether the database may be asked which document a row belongs to.
    :returns: whether it would have to be asked, which is to be done under the lock.
    :raises UnsavedChanges: one of them has.
    """
    postponed = False
    for instance in _pending(session):
        state = inspect(instance)
        role = _role(root, state.mapper)
        if role is None:
            continue
        if role.header and header_identity(state, root) in identities:
            raise UnsavedChanges(
                "it has pending changes, which the fresh read would have to overwrite; "
                "lock first, then change, or flush() before"
            )
        if role.part:
            headers = HeaderResolver(session, root, ask=ask).headers(state)
            postponed = postponed or UNKNOWN in headers
            if not headers.isdisjoint(identities):
                part = parts_with_detail(root, state.mapper)[0]
                raise UnsavedChanges(
                    f"{state.class_.__name__} in its {part.name!r} has pending changes from before "
                    "the lock; lock first, then change, or flush() before"
                )
    return postponed


def _pending(session: Session) -> Iterator[Any]:
    yield from session.new
    yield from session.deleted
    for instance in session.dirty:
        if session.is_modified(instance):
            yield instance
