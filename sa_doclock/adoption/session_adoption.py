"""Adoption: makes the ``with_for_update()`` of a session's statements a lock.

A select with one is executed as a lock.  In any other statement, the lock is made real or refused
just before the statement is sent, by SQLAlchemy's compiled statement: whatever put the lock there,
and wherever it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from itertools import chain
from typing import Any

from sqlalchemy import Connection, Select
from sqlalchemy.engine import Compiled
from sqlalchemy.orm import Session

from ..core.transaction import (
    CompiledCheck,
    Executor,
    LockContext,
    check_statements,
    make_plan,
    open_for_lock,
    state_of,
)
from ..dialects import NO_TEXT, has_hints, translated_table
from ..dialects.base import READ_COMMITTED, Locked, LockStrategy, lock_in_select
from ..errors import DeadlockDetected, LockNotSupported
from ..options import LockOptions, is_row_lock, without_no_key
from .compiled_locks import NO_LOCKS, CompiledLock, CompiledLocks, locks_in, strongest_of
from .for_update import inner_select, lock_of_for_update


class SessionAdoption:
    """Makes the ``with_for_update()`` of a session a lock; keeps nothing of the session."""

    def executor(self, session: Session, statement: Any) -> Executor | None:
        """Return the executor of a select with ``with_for_update()``."""
        select = inner_select(statement)
        lock = lock_of_for_update(select) if isinstance(select, Select) else None
        if lock is None:
            return None
        from .adopted_rows import execute_for_update  # noqa: PLC0415  # at the first such statement

        context = state_of(session)
        assert context is not None  # no other session has parts
        return partial(execute_for_update, context, statement, lock)


def _check_of(compiled: Compiled) -> CompiledCheck | None:
    locks = locks_in(compiled)
    if locks is NO_LOCKS:
        return None
    return CompiledCheck(partial(_check, locks), in_calls=bool(locks.within))


def _check(locks: CompiledLocks, state: LockContext, context: Any) -> None:
    if state.parts.adoption is not None:
        _check_locks(state, context.root_connection, locks, context.execution_options)
        call = state.calls.current
        joined = state.connections.find(context.root_connection)
        if call is not None and call.request.as_is:
            if locks.reads_more:
                call.target.reads_more, call.target.writes = True, locks.writes
            call.target.expire_unread(locks)
        elif call is None and joined is not None:
            from .unread_rows import expire_at  # noqa: PLC0415  # at the first such statement

            expire_at(state, joined, locks.tables)


def _check_locks(
    state: LockContext, connection: Connection, locks: CompiledLocks, options: Mapping[str, Any]
) -> None:
    """Take these locks in the transaction if this database's SQL has none of them.

    Within a lock call, that call takes the outermost one.

    :raises LockNotSupported: nothing would lock.
    """
    joined = state.connections.find(connection)
    if joined is None or joined.connection is not connection:
        return
    call = state.calls.current
    unseen = locks.all if call is None else locks.within
    _refuse_unlocked(unseen, joined.known)
    if joined.known is None:
        return
    # Within a lock call, the outermost one is ours, not the program's.
    written = locks.all if call is None or call.request.as_is else locks.within
    if written:
        joined.known.check_autocommit(connection)
    if joined.known.statements.locked is Locked.DATABASE:
        wanted = strongest_of(unseen)
        if wanted is not None:  # one lock of the whole database for all of them
            plan = make_plan(None, wanted, joined.known, upgrades=True)
            open_for_lock(state, connection, plan, None)
    for lock in written:
        _check_tables(lock, joined.known, state, connection, options)


def _check_tables(
    lock: CompiledLock,
    strategy: LockStrategy,
    state: LockContext,
    connection: Connection,
    options: Mapping[str, Any],
) -> None:
    """Check that the SQL locks rows, and that the rows of each table can be locked."""
    statements, wanted = strategy.statements, lock.lock or LockOptions.None_
    if statements.locked is Locked.DATABASE:  # it locks the schemas of the tables
        found = (froms.tables_below(froms.subqueries) for froms in lock.froms)
        # The ORM writes one SELECT as several.
        tables: Iterable[Any] = dict.fromkeys(chain.from_iterable(found))
    elif is_row_lock(lock_in_select(statements, wanted, READ_COMMITTED)):
        tables = lock.tables_on(statements)
    else:
        return
    try:
        for table in tables:
            translated = translated_table(table, options)
            strategy.check_table(connection, translated, wanted, adopted=True)
    except DeadlockDetected as error:
        state.transaction.note_ended_at_question(error, state.calls.current)
        raise


def _refuse_unlocked(locks: Collection[CompiledLock], strategy: LockStrategy | None) -> None:
    """:raises LockNotSupported: the SQL of one of these has no lock."""
    if any(lock.lock is None for lock in locks):
        raise LockNotSupported(
            "SQLAlchemy sends no FOR UPDATE for a UNION. Lock the rows by a select of their own"
        )
    if strategy is None or not has_hints(strategy.statements):
        return
    statements = strategy.statements
    for lock in locks:
        assert lock.lock is not None
        text = statements.texts.get(without_no_key(lock.lock), NO_TEXT)
        if not any((strategy.name, hint) in lock.hints for hint in (text.hint, text.by_key)):
            tables = ", ".join(table.name for table in lock.tables_on(statements))
            raise LockNotSupported(
                f"{strategy.name} has no FOR UPDATE, and no table hint can replace the with_for_update() of "
                f"{tables} within another statement. Execute that select by itself"
            )


check_statements(_check_of)
