"""The refusal of a lock on a document with pending changes: the fresh read would overwrite them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from sqlalchemy.orm import InstanceState, Mapper, Session

from ...errors import UnsavedChanges
from ...keys import Identity
from ..documents import (
    UNKNOWN,
    HeaderResolver,
    compares_in_python,
    header_identity,
    is_row_of_root,
    parts_with_detail,
)
from ..loading import DocumentIndex, Role, in_session_order, role_of
from ..same_tables import header_by_name
from ..transaction import LockContext


def refuse_unsaved(
    context: LockContext, root: Mapper[Any], identities: Collection[Identity], *, ask: bool = False
) -> bool:
    """Check that none of these documents has pending changes in the session.

    :param ask: whether to ask the database to which document a row belongs, if necessary.
    :returns: whether it must be asked, which is to be done under the lock.
    """
    resolver = HeaderResolver(context.session(), root, ask=ask)
    postponed = False
    refused: list[InstanceState[Any]] = []
    others: defaultdict[Identity, list[InstanceState[Any]]] = defaultdict(list)
    loaded = context.loaded.of(root)
    _refuse_others(loaded, root, identities)
    for state in loaded.pending(identities):
        role = role_of(root, state.mapper)
        assert role is not None  # the index has no other objects
        headers = _headers_of(root, role, state, identities, resolver)
        if not headers.isdisjoint(identities):
            refused.append(state)
        postponed = postponed or _may_be_others(loaded, role, state, headers)
        for header in headers:
            others[header].append(state)
    if refused:
        _refuse_first(context.session(), root, refused, identities)
    equal = _refuse_equal_keys(context.session(), root, identities, resolver, others)
    return equal or postponed


def _refuse_others(
    loaded: DocumentIndex, root: Mapper[Any], identities: Collection[Identity]
) -> None:
    """Refuse pending changes of classes that map another object for a table of these documents.

    If the class does not map the foreign key to the header, the row may belong to any of them.
    """
    for state in loaded.pending_others():
        names = header_by_name(state.mapper, root)
        before = (state.attrs[name].history for name in names or ())
        old = tuple(
            next(iter(history.deleted or history.unchanged or ()), None) for history in before
        )
        if names is None or {tuple(map(state.dict.get, names)), old} & {*identities}:
            raise UnsavedChanges(
                f"{state.class_.__name__} maps a table of the document too, and has pending "
                "changes from before the lock; lock first and change it then, or flush() before "
                "the lock"
            )


def _headers_of(
    root: Mapper[Any],
    role: Role,
    state: InstanceState[Any],
    identities: Collection[Identity],
    resolver: HeaderResolver,
) -> frozenset[Identity]:
    """Return the object's own key if it is among these headers, else the headers of the part."""
    if role.header and (own := header_identity(state, root)) in identities:
        return frozenset({own})
    return resolver.headers(state) if role.parts else frozenset()


def _may_be_others(
    loaded: DocumentIndex, role: Role, state: InstanceState[Any], headers: Collection[Identity]
) -> bool:
    """Return whether a part may belong to other documents too, as far as loaded attributes show.

    Another transaction may have moved the owner of a part of a part that is not locked.
    """
    through_others = bool(role.parts) and role.direct is None
    moved = through_others and state.key is not None and not loaded.are_fresh(headers)
    return UNKNOWN in headers or moved


def _refuse_equal_keys(
    session: Session,
    root: Mapper[Any],
    identities: Collection[Identity],
    resolver: HeaderResolver,
    others: Mapping[Identity, Collection[InstanceState[Any]]],
) -> bool:
    """Return whether the database may consider another key equal to one of these.

    :raises UnsavedChanges: it does; the server was asked.
    """
    if not others or compares_in_python(root):
        return False
    stored = resolver.stored_keys(others).items()
    refused = [other for identity, key in stored if key in identities for other in others[identity]]
    if refused:
        _refuse_first(session, root, refused, ())
    return True


def _refuse_first(
    session: Session,
    root: Mapper[Any],
    refused: Collection[InstanceState[Any]],
    identities: Collection[Identity],
) -> NoReturn:
    """Raise UnsavedChanges for the first of these objects, headers with these keys first."""
    ordered = in_session_order(session, refused, lambda state: state)
    for state in ordered:
        if is_row_of_root(state.mapper, root) and header_identity(state, root) in identities:
            raise UnsavedChanges(
                "it has pending changes, which the fresh read would have to overwrite; lock "
                "first and change it then, or flush() before the lock"
            )
    first = ordered[0]
    part = parts_with_detail(root, first.mapper)[0]
    raise UnsavedChanges(
        f"{first.class_.__name__} in its {part.name!r} has pending changes from before the lock; "
        "lock first and change it then, or flush() before the lock"
    )
