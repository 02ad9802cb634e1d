"""A select made by with_lock(), executed in a LockingSession.

A statement that reads the header's table alone locks and loads in one go.  One that
reads more (joined inheritance, a join) is locked by its keys first and read after: a
locking SELECT shows the other tables as they were before its wait, and where there is no
``FOR UPDATE OF`` it would lock their rows along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from sqlalchemy import ClauseElement, ColumnElement, Result, Select, inspect
from sqlalchemy.orm import Mapper, Session

from ..documents import (
    document_key,
    has_subquery,
    header_table,
    key_attributes,
    own_table,
    root_of,
    spans_rows,
    tables_of,
    tables_within,
)
from ..errors import LockNotSupported
from ..lock_info import DocumentKey, Identity
from ..options import LockOptions, is_row_lock
from ..sqlalchemy_internals import (
    has_limit,
    has_offset,
    only_columns,
    options_of,
    without_lock,
    without_options,
)
from ..statements import (
    LockedEntity,
    add_lock,
    key_in,
    lock_where,
    refuse_unlockable_shape,
    run_within,
)
from ..transaction import Ledger, TransactionConnection
from .context import LockContext
from .load_parts import load_again
from .refresh import make_stale, refuse_unsaved

T = TypeVar("T")
Run = Callable[[Select[Any]], Result[Any]]
"""Executes a statement with the parameters and bind arguments of the caller."""


def execute_locked(
    session: Session,
    books: LockContext,
    run: Run,
    statement: Select[Any],
    bind_arguments: Mapping[str, Any],
    locked: LockedEntity,
) -> Result[Any]:
    """Run the statement under its lock, and note in the ledger what it has locked.

    :raises UnsavedChanges: one of the documents has pending changes; it is locked then.
    """
    mapper = inspect(locked.entity).mapper
    root, statement = root_of(mapper), _checked(statement, locked)
    if is_row_lock(locked.lock):
        books.ledger.check_order(root)
    arguments = {**bind_arguments, "mapper": mapper, "clause": statement}
    participant = books.participants.prepare(arguments, mapper, locked.lock, locked.seconds)
    row_lock = participant.row_lock(locked.lock)
    unreadable = make_stale(session, root, None, books.ledger.held)
    with books.waiting(participant, locked.lock, locked.seconds):
        if not is_row_lock(row_lock):  # the lock is the transaction's
            result, identities = _read(run, statement, locked)
        else:
            participant.strategy.check_table(participant.connection, own_table(mapper))
            result, identities = _locked_rows(run, statement, locked, participant, row_lock)
        load_again(session, unreadable)
    _note(session, mapper, identities, locked.lock, books.ledger)
    return result


def _checked(statement: Select[Any], locked: LockedEntity) -> Select[Any]:
    statement = without_options(statement, locked.eager)
    refuse_unlockable_shape(statement)
    return statement


def refuse_streaming(options: Mapping[str, Any]) -> None:
    """:raises LockNotSupported: rows would be locked one by one, as they are fetched."""
    if options.get("yield_per") or options.get("stream_results"):
        raise LockNotSupported("a locked set is read whole: leave out yield_per and stream()")


def _locked_rows(
    run: Run,
    statement: Select[Any],
    locked: LockedEntity,
    participant: TransactionConnection,
    row_lock: LockOptions,
) -> tuple[Result[Any], Iterable[Identity]]:
    def wait(statement_for: Callable[[LockOptions], Select[Any]], run: Callable[..., T]) -> T:
        return run_within(locked.seconds, participant.strategy, row_lock, statement_for, run)

    def with_it(lock: LockOptions) -> Select[Any]:
        # Another one on SQL Server: SharedRead in a transaction that is open at READ COMMITTED.
        return statement if lock is locked.lock else add_lock(statement, locked.entity, lock)

    if statement.get_final_froms() == [header_table(locked.entity)] and not _reads_more(statement):
        return wait(with_it, lambda statement: _read(run, statement, locked))
    mapper = inspect(locked.entity).mapper
    key = _key_of(locked.entity, mapper)
    again = _read_again(statement, locked.entity)
    if participant.strategy.locks_one_table_of_join():
        identities = wait(
            lambda lock: only_columns(with_it(lock), key),
            lambda keys: _distinct(run(keys)),
        )
    else:
        where = _candidates(run, only_columns(statement, key), mapper, row_lock)
        identities = wait(
            lambda lock: lock_where(root_of(mapper), lock, where),
            lambda keys: _distinct(row[: len(key)] for row in run(keys)),
        )
    return _read(run, again.where(key_in(key, identities)), locked)[0], identities


def _reads_more(statement: Select[Any]) -> bool:
    """Whether a subquery among the columns would show what there was before the wait."""
    for described in statement.column_descriptions:
        found = inspect(described["expr"], raiseerr=False)
        mapper = getattr(found, "mapper", None)
        if mapper is not None and described["expr"] is described["entity"]:
            if spans_rows(mapper, undeferred=bool(options_of(statement))):
                return True
        elif isinstance(described["expr"], ClauseElement) and has_subquery(described["expr"]):
            return True
    return False


def _read_again(statement: Select[Any], entity: Any) -> Select[Any]:
    """The same rows, without the lock, among keys that are to be added."""
    joined = set(tables_within(statement.get_final_froms())) - set(tables_of(entity))
    if not joined:  # a row a key, so the keys tell all
        return without_lock(statement).limit(None).offset(None)
    if has_offset(statement):
        raise LockNotSupported("the rows of a join cannot be locked with OFFSET; use the last key")
    return without_lock(statement)


def _key_of(entity: Any, mapper: Mapper[Any]) -> list[Any]:
    return [getattr(entity, name) for name in key_attributes(mapper)]


def _read(
    run: Run, statement: Select[Any], locked: LockedEntity
) -> tuple[Result[Any], Iterable[Identity]]:
    frozen = run(statement).freeze()
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


def _candidates(
    run: Run, keys: Select[Any], mapper: Mapper[Any], row_lock: LockOptions
) -> ColumnElement[bool]:
    """The rows to lock, found before, where FOR UPDATE would lock all tables of the join."""
    if LockOptions.SkipLocked in row_lock and has_limit(keys):
        raise LockNotSupported(
            "this database cannot skip the locked rows of a join with LIMIT; "
            "select the entity alone, with EXISTS in place of the join"
        )
    return key_in(root_of(mapper).primary_key, _distinct(run(without_lock(keys))))


def _distinct(rows: Iterable[Any]) -> list[Identity]:
    return list(dict.fromkeys(tuple(row) for row in rows))


def _note(
    session: Session,
    mapper: Mapper[Any],
    identities: Iterable[Identity],
    lock: LockOptions,
    ledger: Ledger,
) -> None:
    newly: dict[Identity, DocumentKey] = {}
    for identity in identities:
        key = document_key(mapper, identity)
        if not ledger.covers(key, lock):
            newly[identity] = key
    if newly:
        refuse_unsaved(session, root_of(mapper), newly.keys(), ask=True)
    for key in newly.values():
        ledger.record(key, lock)
