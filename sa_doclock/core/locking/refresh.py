"""The session's copies of a document are expired, so that nothing read is older than the lock.

The identity map keeps an object's attributes as they were read first, whatever a later
SELECT returns.  So the header, its collections and its details are expired before the
locking SELECT, which then fills in the header; details come with their next access.
Expiring, unlike ``populate_existing``, leaves every other object's pending changes alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from sqlalchemy.orm import InstanceState, Mapper, Session

from ...errors import UnsavedChanges
from ..documents import (
    UNKNOWN,
    HeaderResolver,
    compares_in_python,
    header_identity,
    parts_with_detail,
)
from ..loading.loaded import Unreadable, role_of
from ..lock_info import Identity
from ..transaction import LockContext


def expire_documents(
    context: LockContext, root: Mapper[Any], identities: Collection[Identity] | None
) -> Unreadable:
    """Expire what the session has loaded of these documents.

    Documents held already, which nobody else can have changed, keep what was loaded.  A
    detail of a document that is *not* held is expired too, since it may have been moved to
    one that is being locked; so that it does not come back one SELECT a detail, the
    collection it was in is expired with it.

    :param identities: the keys of the headers; None for every document of this root.
    :returns: what is to be loaded again under the lock.
    """
    return context.loaded.of(root).expire(identities)


def expire_parts(
    context: LockContext, root: Mapper[Any], identities: Collection[Identity]
) -> Unreadable:
    """Expire the parts of these documents, whose headers have just been read under their locks."""
    return context.loaded.of(root).expire(identities, parts_alone=True)


def forget_vanished(session: Session, mapper: Mapper[Any], identity: Identity) -> None:
    """Take an object whose row is gone out of the session, as ``Session.get()`` does."""
    header = session.identity_map.get(mapper.identity_key_from_primary_key(identity))
    if header is not None:
        session.expire(header)
        with session.no_autoflush:
            session.get(mapper.class_, identity)


def refuse_unsaved(
    context: LockContext,
    root: Mapper[Any],
    identities: Collection[Identity],
    *,
    ask: bool = False,
) -> bool:
    """Check that none of these documents has pending changes in the session.

    :param ask: whether the database may be asked which document a row belongs to.
    :returns: whether it would have to be asked, which is to be done under the lock.
    """
    postponed = False
    resolver = HeaderResolver(context.session(), root, ask=ask)
    others: dict[Identity, InstanceState[Any]] = {}
    for state in context.loaded.of(root).pending(identities):
        role = role_of(root, state.mapper)
        if role is None:
            continue
        if role.header and header_identity(state, root) in identities:
            raise UnsavedChanges(
                "it has pending changes, which the fresh read would have to overwrite; "
                "lock first, then change, or flush() before"
            )
        if role.parts:
            headers = resolver.headers(state)
            postponed = postponed or UNKNOWN in headers
            if not headers.isdisjoint(identities):
                _refuse_unsaved_part(root, state)
            others.update(dict.fromkeys(headers, state))
    return _refuse_equal_keys(root, identities, resolver, others) or postponed


def _refuse_equal_keys(
    root: Mapper[Any],
    identities: Collection[Identity],
    resolver: HeaderResolver,
    others: Mapping[Identity, InstanceState[Any]],
) -> bool:
    """Return whether the database may know one of the other keys as one of these identities.

    :raises UnsavedChanges: it was asked, and does.
    """
    if not others or compares_in_python(root):
        return False
    for identity, stored in resolver.stored_keys(others).items():
        if stored in identities:
            _refuse_unsaved_part(root, others[identity])
    return True


def _refuse_unsaved_part(root: Mapper[Any], state: InstanceState[Any]) -> NoReturn:
    part = parts_with_detail(root, state.mapper)[0]
    raise UnsavedChanges(
        f"{state.class_.__name__} in its {part.name!r} has pending changes from before "
        "the lock; lock first, then change, or flush() before"
    )
