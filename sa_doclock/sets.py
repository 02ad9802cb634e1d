"""A select made by with_lock(), executed in a LockingSession.

A statement that reads the header's table alone locks and loads in one go.  One that
reads more (joined inheritance, a join) is locked by its keys first and read after: a
locking SELECT shows the other tables as they were before its wait, and where there is no
``FOR UPDATE OF`` it would lock their rows along.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Result, Select, inspect, select
from sqlalchemy.orm import Mapper, ORMExecuteState

from .dialects.base import LockStrategy
from .documents import document_key, header_table, own_table, root_of
from .errors import LockNotSupported
from .freshness import make_stale, refuse_unsaved
from .ledger import Ledger
from .options import LockOptions, is_row_lock
from .shapes import has_limit, only_columns, refuse_unlockable_shape, without_lock, without_options
from .statements import LockedEntity, among, locking
from .transactions import Participants

Identity = tuple[Any, ...]


def execute_locked(
    state: ORMExecuteState, locked: LockedEntity, participants: Participants, ledger: Ledger
) -> Result[Any]:
    """Run the statement under its lock, and note in the ledger what it has locked.

    :raises UnsavedChanges: one of the documents has pending changes; it is locked then.
    """
    session, mapper = state.session, inspect(locked.entity).mapper
    root, statement = root_of(mapper), _checked(state, locked)
    bind_arguments = {**state.bind_arguments, "mapper": mapper, "clause": statement}
    participant = participants.prepare(bind_arguments, mapper, locked.lock, None)
    strategy, row_lock = participant.strategy, participant.row_lock(locked.lock)
    make_stale(session, root, None, ledger.held)
    if not is_row_lock(row_lock):  # the lock is the transaction's
        result, identities = _read(state, statement, locked)
    else:
        strategy.check_table(participant.connection, own_table(mapper))
        statement = _hinted(statement, locked, row_lock, strategy)
        header = header_table(locked.entity)
        if statement.get_final_froms() == [header]:
            result, identities = _read(state, statement, locked)
        else:
            result, identities = _lock_then_read(state, statement, locked, row_lock, strategy)
    keys = [document_key(mapper, identity) for identity in identities]
    newly = {identity for _, identity in keys if (root.class_, identity) not in ledger.held}
    for key in keys:
        if not ledger.covers(key, locked.lock):
            ledger.record(key, locked.lock)
    refuse_unsaved(session, root, newly)
    return result


def _checked(state: ORMExecuteState, locked: LockedEntity) -> Select[Any]:
    assert isinstance(state.statement, Select)
    statement = without_options(state.statement, locked.eager)
    refuse_unlockable_shape(statement)
    options = state.execution_options
    if options.get("yield_per") or options.get("stream_results"):
        raise LockNotSupported("a locked set is read whole: leave out yield_per and stream()")
    return statement


def _hinted(
    statement: Select[Any], locked: LockedEntity, row_lock: LockOptions, strategy: LockStrategy
) -> Select[Any]:
    # SharedRead in a transaction of SQL Server that is open at READ COMMITTED
    if row_lock is locked.lock or row_lock not in strategy.hints:
        return statement
    hint = strategy.hints[row_lock]
    return statement.with_hint(header_table(locked.entity), hint, strategy.name)


def _read(
    state: ORMExecuteState, statement: Select[Any], locked: LockedEntity
) -> tuple[Result[Any], Iterable[Identity]]:
    # make_stale() has done what populate_existing does in a plain Session, without its
    # overwriting of pending changes elsewhere.
    frozen = state.invoke_statement(
        statement, execution_options={"populate_existing": False}
    ).freeze()
    positions = [
        position
        for position, described in enumerate(statement.column_descriptions)
        if described["expr"] is locked.entity
    ]
    identities = [
        inspect(row[position]).identity
        for row in (frozen() if positions else ())
        for position in positions
        if row[position] is not None
    ]
    return frozen(), identities


def _lock_then_read(
    state: ORMExecuteState,
    statement: Select[Any],
    locked: LockedEntity,
    row_lock: LockOptions,
    strategy: LockStrategy,
) -> tuple[Result[Any], Iterable[Identity]]:
    mapper: Mapper[Any] = inspect(locked.entity).mapper
    key = [
        getattr(locked.entity, mapper.get_property_by_column(column).key)
        for column in mapper.primary_key
    ]
    identities = _lock_keys(state, only_columns(statement, key), mapper, row_lock, strategy)
    result, _ = _read(state, without_lock(statement).where(among(key, identities)), locked)
    return result, identities


def _lock_keys(
    state: ORMExecuteState,
    keys: Select[Any],
    mapper: Mapper[Any],
    row_lock: LockOptions,
    strategy: LockStrategy,
) -> list[Identity]:
    bind_arguments = {**state.bind_arguments, "mapper": mapper}
    if strategy.locks_one_table_of_join():
        return _distinct(state.invoke_statement(keys))
    if LockOptions.SkipLocked in row_lock and has_limit(keys):
        raise LockNotSupported(
            f"{strategy.name} cannot skip the locked rows of a join with LIMIT; "
            "select the entity alone, with EXISTS in place of the join"
        )
    candidates = _distinct(state.invoke_statement(without_lock(keys)))
    own = root_of(mapper).primary_key
    lock = select(*own).where(among(own, candidates)).order_by(*own)
    lock = locking(lock, root_of(mapper).class_, row_lock)
    return _distinct(state.session.execute(lock, bind_arguments=bind_arguments))


def _distinct(rows: Result[Any]) -> list[Identity]:
    return list(dict.fromkeys(tuple(row) for row in rows))
