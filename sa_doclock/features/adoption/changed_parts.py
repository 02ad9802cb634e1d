"""Parts with a pending change or delete from before the program's own ``with_for_update()``.

SQLAlchemy flushes them before the statement; without autoflush they stay pending.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import InstanceState, LoaderCallableStatus, Mapper, Session

from ...core.documents import key_attributes
from ...core.loading import role_of
from ...core.lock_info import Identity
from ...core.sqlalchemy_internals import deleted_states
from ...core.transaction import LockContext
from .loaded_headers import is_mutable, loaded_columns


def changed_parts(
    context: LockContext, root: Mapper[Any], header: Identity, bind_arguments: Mapping[str, Any]
) -> Iterator[tuple[InstanceState[Any], str]]:
    """Yield the parts, and their attributes, that another has changed and the next flush overwrites.

    :param header: the key of the header, which has just been locked.
    :param bind_arguments: those of the statement that has locked it.
    """
    for state in context.loaded.of(root).pending([header]):
        role = role_of(root, state.mapper)
        if role is not None and not role.header and state.key is not None:
            for name in _changed_meanwhile(context, state, bind_arguments):
                yield state, name


def _changed_meanwhile(
    context: LockContext, state: InstanceState[Any], bind_arguments: Mapping[str, Any]
) -> list[str]:
    """Compare what the row has now with what was read of it, by one SELECT."""
    columns = state.mapper.columns
    read, in_place = dict[str, Any](), list[str]()
    for name, value in _overwritten(context.session(), state).items():
        if name not in state.mapper.column_attrs:
            continue
        if value is not LoaderCallableStatus.NO_VALUE:
            read[name] = value
        elif is_mutable(state.dict.get(name)):  # nobody knows what was read, as of a header
            in_place.append(name)
    found = _read_now(context, state, [*read], bind_arguments) if read else None
    if found is None:  # the row is gone: the flush raises
        return in_place
    return in_place + [
        name for name in read if not columns[name].type.compare_values(read[name], found[name])
    ]


def _overwritten(session: Session, state: InstanceState[Any]) -> Mapping[str, Any]:
    """Return what was read of the attributes that the next flush overwrites; of a DELETE, all."""
    if state in deleted_states(session):
        return {**loaded_columns(state), **state.committed_state}
    return state.committed_state


def _read_now(
    context: LockContext,
    state: InstanceState[Any],
    names: Sequence[str],
    bind_arguments: Mapping[str, Any],
) -> dict[str, Any] | None:
    """Return these attributes as the row has them now; None where it is gone."""
    mapper, session, entity = state.mapper, context.session(), state.class_
    key = zip(key_attributes(mapper), state.identity or (), strict=True)
    statement = select(*(getattr(entity, name) for name in names))
    statement = statement.where(*(getattr(entity, name) == value for name, value in key))
    binds = {**bind_arguments, "mapper": mapper, "clause": statement}
    with session.no_autoflush:
        row = Session.execute(session, statement, bind_arguments=binds).first()
    return None if row is None else dict(zip(names, row, strict=True))
