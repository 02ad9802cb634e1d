"""Pending changes from before the program's ``with_for_update()``, compared with the rows under its lock.

SQLAlchemy flushes them before the statement; without autoflush they stay pending.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from sqlalchemy import Column, select
from sqlalchemy.orm import InstanceState, LoaderCallableStatus, Mapper, Session

from ..core.documents import document_key, key_attributes, root_of
from ..core.loading import role_of
from ..core.transaction import LockContext
from ..options import LockOptions
from ..sqlalchemy_internals import deleted_states, modified_states

State = InstanceState[Any]

CHANGED: Final = (
    "{} has a pending change or delete from before the lock, and another session changed the row "
    "meanwhile. Lock first and change it then, or flush() before the lock"
)
"""The text of the error."""


def is_held(context: LockContext, state: State) -> bool:
    """Return whether a lock keeps others from changing the object's row."""
    held = context.ledger.held.get(document_key(state.mapper, state.identity or ()))
    return held is not None and bool(held & (LockOptions.ForUpdate | LockOptions.SharedRead))


def changed_beside(
    context: LockContext, header: State, bind_arguments: Mapping[str, Any]
) -> Iterator[tuple[State, str]]:
    """Yield the parts, and other objects of the row, that others changed and a flush would overwrite.

    :param header: an object of the row that was just locked, already compared.
    :param bind_arguments: those of the locking statement.
    """
    root = root_of(header.mapper)
    for state in context.loaded.of(root).pending([header.identity or ()]):
        if state is not header and state.key is not None:
            yield from _changed_meanwhile(context, state, bind_arguments)


def changed_rows(
    context: LockContext, roots: Collection[Mapper[Any]], bind_arguments: Mapping[str, Any]
) -> Iterator[tuple[State, str]]:
    """Yield the same for all documents of these roots: which of them are locked is unknown."""
    session = context.session()
    for state in [*chain(modified_states(session), deleted_states(session))] if roots else ():
        if any(role_of(root, state.mapper) is not None for root in roots):
            yield from _changed_meanwhile(context, state, bind_arguments)


def _changed_meanwhile(
    context: LockContext, state: State, bind_arguments: Mapping[str, Any]
) -> Iterator[tuple[State, str]]:
    columns, overwritten = state.mapper.column_attrs, state.committed_state
    if state in deleted_states(context.session()):  # a DELETE overwrites everything
        overwritten = {**only_columns(state.mapper, state.dict), **overwritten}
    read = {name: value for name, value in overwritten.items() if name in columns}
    for name in compare(context, state, read, {}, bind_arguments):
        yield state, name


def compare(
    context: LockContext,
    state: State,
    read: Mapping[str, Any],
    known: Mapping[str, Any],
    bind_arguments: Mapping[str, Any],
) -> list[str]:
    """Return the attributes whose value in the row differs from the value that was read.

    The old value of an attribute that changed in place is unknown.

    :param read: the values as read.
    :param known: the row's known values; one SELECT reads the rest.
    """
    unknown = LoaderCallableStatus.NO_VALUE
    asked = [name for name, value in read.items() if value is not unknown and name not in known]
    found = {**known, **((asked and _read_now(context, state, asked, bind_arguments)) or {})}
    columns, changed = state.mapper.columns, list[str]()
    for name, value in read.items():
        if value is unknown:
            # Its type notifies SQLAlchemy of changes in place; importing the module would listen to all mappers.
            mutable = sys.modules.get("sqlalchemy.ext.mutable")
            other = mutable and isinstance(state.dict.get(name), mutable.MutableBase)
        else:  # the row is gone: the flush raises
            other = name in found and not columns[name].type.compare_values(value, found[name])
        if other:
            changed.append(name)
    return changed


def _read_now(
    context: LockContext, state: State, names: Sequence[str], bind_arguments: Mapping[str, Any]
) -> dict[str, Any] | None:
    mapper, session, entity = state.mapper, context.session(), state.class_
    key = zip(key_attributes(mapper), state.identity or (), strict=True)
    statement = select(*(getattr(entity, name) for name in names))
    statement = statement.where(*(getattr(entity, name) == value for name, value in key))
    binds = {**bind_arguments, "mapper": mapper, "clause": statement}
    with session.no_autoflush:
        row = Session.execute(session, statement, bind_arguments=binds).first()
    return None if row is None else dict(zip(names, row, strict=True))


def only_columns(mapper: Mapper[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values whose attributes are columns of a table."""
    columns = mapper.columns
    return {
        name: value
        for name, value in values.items()
        if name in columns and isinstance(columns[name], Column)
    }
