"""The rule for ``with_for_update()`` in a statement that is about to be sent: real, or refused.

It goes by what SQLAlchemy has compiled, whoever has put the lock there, and wherever it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection

from ...core.transaction import LockCall, LockContext, make_plan
from ...dialects.base import READ_COMMITTED, LockStrategy
from ...errors import DeadlockDetected, LockNotSupported
from ...options import LockOptions, is_row_lock, without_no_key
from .compiled_locks import CompiledLock, CompiledLocks, strongest_of


def check_locks(state: LockContext, connection: Connection, locks: CompiledLocks) -> None:
    """Have these locks in the transaction, where the SQL of this database carries none of them.

    In a call for a lock, the outermost is made real by that call.

    :raises LockNotSupported: nothing would lock.
    """
    one = state.connections.find(connection)
    if one is None or one.connection is not connection:
        return
    unseen = locks.all if state.calls.current is None else locks.within
    _refuse_union(unseen)
    if one.known is None:
        return
    for lock in unseen:
        _refuse_without_hint(lock, one.known)
    for lock in _sent_as_is(locks, state.calls.current):
        _check_tables(lock, one.known, state, connection)
    if one.known.locks_database:
        _lock_database(one.known, state, connection, unseen)
        _lock_schemas(one.known, connection, _sent_as_is(locks, state.calls.current))


def _refuse_union(locks: Iterable[CompiledLock]) -> None:
    if any(lock.lock is None for lock in locks):
        raise LockNotSupported(
            "SQLAlchemy sends no FOR UPDATE of a UNION: lock the rows by a select of their own"
        )


def _sent_as_is(locks: CompiledLocks, call: LockCall | None) -> Sequence[CompiledLock]:
    """Return the locks that the program has written: in a call of ours the outermost is not."""
    return locks.all if call is None or call.request.as_is else locks.within


def _lock_database(
    strategy: LockStrategy,
    state: LockContext,
    connection: Connection,
    locks: Iterable[CompiledLock],
) -> None:
    wanted = strongest_of(locks)
    if wanted is not None:
        plan = make_plan(None, wanted, strategy, upgrades=True)
        seconds = 0.0 if LockOptions.NoWait in wanted else None
        state.opener.prepare(connection, plan, seconds)


def _lock_schemas(
    strategy: LockStrategy, connection: Connection, locks: Iterable[CompiledLock]
) -> None:
    """Have the locks in the schemas of their tables too, of whatever class these are."""
    for one in locks:
        lock = one.lock or LockOptions.None_
        seconds = 0.0 if LockOptions.NoWait in lock else None
        for froms in one.froms:
            for table in froms.tables_below(froms.subqueries):
                strategy.waits.wait_for_schema(connection, lock, seconds, table)


def _check_tables(
    lock: CompiledLock, strategy: LockStrategy, state: LockContext, connection: Connection
) -> None:
    """Check that the SQL locks rows, and that the rows of each of its tables can be locked."""
    if lock.lock is None or not is_row_lock(
        strategy.statements.row_lock(lock.lock, READ_COMMITTED)
    ):
        return
    try:
        for table in lock.tables_on(strategy.statements):
            strategy.check_adopted(connection, lock.lock, table)
    except DeadlockDetected as error:
        state.failure.note_ended_at_question(error, state.calls.current)
        raise


def _refuse_without_hint(lock: CompiledLock, strategy: LockStrategy) -> None:
    statements = strategy.statements
    if not statements.hints:
        return
    assert lock.lock is not None
    as_hinted = without_no_key(lock.lock)
    ours = statements.hints.get(as_hinted), statements.hints_by_key.get(as_hinted)
    if not any((strategy.name, hint) in lock.hints for hint in ours):
        tables = ", ".join(table.name for table in lock.tables_on(statements))
        raise LockNotSupported(
            f"{strategy.name} has no FOR UPDATE, and the with_for_update() of {tables} stands where "
            "no table hint can take its place: execute the select that has it by itself"
        )
