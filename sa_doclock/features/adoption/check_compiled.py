"""The rule for ``with_for_update()`` in a statement that is about to be sent: real, or refused.

It goes by what SQLAlchemy has compiled, whoever has put the lock there, and wherever it stands.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from ...core.transaction import LockContext, make_plan
from ...dialects.base import LockStrategy
from ...errors import DeadlockDetected, LockNotSupported
from ...options import LockOptions, without_no_key
from .compiled_locks import CompiledLock, CompiledLocks, strongest_of


def check_locks(state: LockContext, connection: Connection, locks: CompiledLocks) -> None:
    """Have these locks in the transaction, where the SQL of this database carries none of them.

    :raises LockNotSupported: nothing would lock.
    """
    one = state.connections.find(connection)
    if one is None or one.connection is not connection:
        return
    unseen = locks.within if state.calls.current is not None else locks.all
    if any(lock.lock is None for lock in unseen):
        raise LockNotSupported(
            "SQLAlchemy sends no FOR UPDATE of a UNION: lock the rows by a select of their own"
        )
    if one.known is not None:
        _check_on(one.known, state, connection, unseen)


def _check_on(
    strategy: LockStrategy,
    state: LockContext,
    connection: Connection,
    locks: Sequence[CompiledLock],
) -> None:
    for lock in locks:
        _refuse_without_hint(lock, strategy)
        try:
            for table in lock.tables:
                strategy.check_adopted(connection, LockOptions.ForUpdate, table)
        except DeadlockDetected as error:
            state.failure.note_ended_at_question(error, state.calls.current)
            raise
    wanted = strongest_of(locks)
    if strategy.locks_database and wanted is not None:
        plan = make_plan(None, wanted, strategy, upgrades=True)
        seconds = 0.0 if LockOptions.NoWait in wanted else None
        state.opener.prepare(connection, plan, seconds)


def _refuse_without_hint(lock: CompiledLock, strategy: LockStrategy) -> None:
    statements = strategy.statements
    if not statements.hints:
        return
    assert lock.lock is not None
    as_hinted = without_no_key(lock.lock)
    ours = statements.hints.get(as_hinted), statements.hints_by_key.get(as_hinted)
    if not any((strategy.name, hint) in lock.hints for hint in ours):
        tables = ", ".join(table.name for table in lock.tables) or "what it selects"
        raise LockNotSupported(
            f"{strategy.name} has no FOR UPDATE, and the with_for_update() of {tables} stands where "
            "no table hint can take its place: execute the select that has it by itself"
        )
