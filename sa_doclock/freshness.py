"""What is read under a lock is not older than the lock: what the session knows made stale.

The identity map keeps an object's attributes as they were read first, whatever a later
SELECT returns.  So the header, its collections and its details are expired before the
locking SELECT, which then fills in the header; details come with their next access.
Expiring, unlike ``populate_existing``, leaves every other object's pending changes alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.orm import InstanceState, Mapper, Session

from .documents import DocumentKey, Part, key_attributes, parts_of, remembered, root_of
from .errors import UnsavedChanges
from .options import LockOptions

Held = Mapping[DocumentKey, LockOptions]


def make_stale(
    session: Session, root: Mapper[Any], identity: tuple[Any, ...] | None, held: Held
) -> None:
    """Expire the document with this identity, or every one of this root, in the session.

    Documents held already, which nobody else can have changed, keep what was loaded.  A
    detail of a document that is *not* held is expired too, since it may have been moved to
    the one that is being locked; so that it does not come back one SELECT a detail, the
    collection it was in is expired with it.
    """
    for state in session.identity_map.all_states():
        is_header, parts = _role(root, state.mapper)
        if is_header and (root.class_, state.identity) not in held:
            if identity in (None, state.identity):
                _expire_loaded(session, state)
            else:
                _expire_loaded(session, state, {part.collection for part in parts_of(root)})
        if parts and any((root.class_, part.header_identity(state)) not in held for part in parts):
            _expire_loaded(session, state)


@remembered
def _role(root: Mapper[Any], mapper: Mapper[Any]) -> tuple[bool, tuple[Part, ...]]:
    """Whether objects of the mapper are headers of this root, and of what they are details."""
    return root_of(mapper) is root, tuple(p for p in parts_of(root) if mapper.isa(p.detail))


def _expire_loaded(
    session: Session, state: InstanceState[Any], only: Collection[str] | None = None
) -> None:
    # Named, for two reasons: expire(instance) goes down the "refresh-expire" cascade and
    # drops pending changes there, and a deferred column never loaded stays deferred.
    mapped = state.mapper.attrs if only is None else only
    loaded = [key for key in state.dict if key in mapped]
    instance = state.obj()
    if loaded and instance is not None and not _is_pending(session, instance, state):
        session.expire(instance, loaded)


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
    session: Session, root: Mapper[Any], identities: Collection[tuple[Any, ...]]
) -> None:
    """:raises UnsavedChanges: one of these documents has pending changes in the session."""
    for instance in _pending(session):
        state = inspect(instance)
        if root_of(state.mapper) is root and _identity(state, root) in identities:
            raise UnsavedChanges(
                "it has pending changes, which the fresh read would have to overwrite; "
                "lock first, then change, or flush() before"
            )
        for part in parts_of(root):
            ours = state.mapper.isa(part.detail)
            if ours and any(header in identities for header in _headers(state, part)):
                raise UnsavedChanges(
                    f"{state.class_.__name__} in its {part.collection!r} has pending changes "
                    "from before the lock; lock first, then change, or flush() before"
                )


def _pending(session: Session) -> Iterator[Any]:
    yield from session.new
    yield from session.deleted
    for instance in session.dirty:
        if session.is_modified(instance):
            yield instance


def _identity(state: InstanceState[Any], root: Mapper[Any]) -> tuple[Any, ...]:
    if state.identity is not None:
        return state.identity
    return tuple(state.dict.get(name) for name in key_attributes(root))


def _headers(state: InstanceState[Any], part: Part) -> Iterator[tuple[Any, ...]]:
    """The headers that a pending detail leaves or comes to, as far as it is known."""
    if part.foreign_key is not None:
        yield tuple(state.dict.get(name) for name in part.foreign_key)
        histories = [state.attrs[name].history for name in part.foreign_key]
        yield tuple(
            history.deleted[0] if history.deleted else state.dict.get(name)
            for name, history in zip(part.foreign_key, histories, strict=True)
        )
    for name in part.backrefs:
        history = state.attrs[name].history
        for header in (
            *(history.added or ()),
            *(history.unchanged or ()),
            *(history.deleted or ()),
        ):
            if header is not None:
                yield _identity(inspect(header), root_of(inspect(header).mapper))
