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

from .documents import DocumentKey, Part, key_attributes, parts_of, root_of
from .errors import UnsavedChanges
from .options import LockOptions

Held = Mapping[DocumentKey, LockOptions]


def make_stale(
    session: Session, root: Mapper[Any], identity: tuple[Any, ...] | None, held: Held
) -> None:
    """Expire the document with this identity, or every one of this root, in the session.

    Documents held already, which nobody else can have changed, keep what was loaded.
    """
    parts = parts_of(root)
    kinds = (root.class_, *(part.detail.class_ for part in parts))
    for instance in list(session.identity_map.values()):
        if isinstance(instance, kinds):
            state = inspect(instance)
            if _may_have_changed(state, root, parts, identity, held) and not (
                state.modified and session.is_modified(instance)
            ):
                _expire_loaded(session, instance, state)


def _may_have_changed(
    state: InstanceState[Any],
    root: Mapper[Any],
    parts: tuple[Part, ...],
    identity: tuple[Any, ...] | None,
    held: Held,
) -> bool:
    if root_of(state.mapper) is root:
        own = (root.class_, state.identity or ())
        if own not in held and identity in (None, state.identity):
            return True
    # A detail whose row names another header may have been moved to this one, unless
    # that other header is held.
    return any(
        state.mapper.isa(part.detail) and (root.class_, part.header_identity(state)) not in held
        for part in parts
    )


def _expire_loaded(session: Session, instance: Any, state: InstanceState[Any]) -> None:
    # Named, for two reasons: expire(instance) goes down the "refresh-expire" cascade and
    # drops pending changes there, and a deferred column never loaded stays deferred.
    session.expire(instance, [key for key in state.dict if key in state.mapper.attrs])


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
