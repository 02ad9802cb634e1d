"""Rows that a ``with_for_update()`` locks and returns neither as objects nor by key.

It is unknown which they are: ``select(1)``, EXISTS, ``Query.count()``, the other side of a join.
So the session's objects of all rows of these tables are expired before the statement is sent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Mapper

from ..core.loading import Unreadable, role_of
from ..core.transaction import LockContext, TransactionConnection
from ..errors import UnsavedChanges
from ..keys import document_label, public_key
from ..sqlalchemy_internals import modified_states
from .changed_rows import CHANGED, changed_rows, is_held
from .loaded_headers import expire_unchanged, may_overwrite
from .locked_headers import roots_with_tables


def roots_unread(
    names: frozenset[str], read: Collection[Mapper[Any]] = ()
) -> Collection[Mapper[Any]]:
    """Return the roots of the classes of these tables, except parts of others, which follow their owners.

    :param read: the roots of the objects that the statement returns.
    """
    roots = roots_with_tables(names) if names else ()
    above = {*roots, *read}
    return [
        candidate
        for candidate in roots
        if not any(is_part(root, candidate) for root in above - {candidate})
    ]


def is_part(root: Mapper[Any], mapper: Mapper[Any]) -> bool:
    """Return whether rows of this class are parts of documents of this root."""
    role = role_of(root, mapper)
    return role is not None and bool(role.parts)


def expire_unread(context: LockContext, roots: Iterable[Mapper[Any]]) -> Unreadable:
    """Expire the session's loaded objects of these roots, except locked documents.

    :returns: the parts to load again under the lock, because no access would.
    """
    session, unreadable = context.session(), Unreadable()
    for root in roots if session.identity_map else ():
        for part, owners in context.loaded.of(root).expire(None).items():
            unreadable.setdefault(part, []).extend(owners)
        for state in [*modified_states(session)]:
            if role_of(root, state.mapper) is not None and not is_held(context, state):
                expire_unchanged(session, state)
    return unreadable


def expire_at(
    context: LockContext, connection: TransactionConnection, names: frozenset[str]
) -> None:
    """Do the same for a statement that is about to be sent; compare pending changes under its locks.

    :raises UnsavedChanges: from the statement: a pending change would overwrite another session's
        write.
    """
    session = context.session()
    roots = roots_unread(names) if session.identity_map else ()
    expire_unread(context, roots)
    if not (roots and may_overwrite(session)):
        return
    compared = False

    def compare(connection: Connection, *_: object) -> None:
        nonlocal compared
        if compared:
            return
        compared = True
        for state, name in changed_rows(context, roots, {"bind": connection}):
            label = document_label(state.class_, public_key(state.identity or ()))
            raise UnsavedChanges(CHANGED.format(f"{name!r} of {label}"))

    connection.listen("after_cursor_execute", compare)
