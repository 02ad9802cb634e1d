"""The events of sessions: their transactions, and the SELECTs of objects."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Result, inspect
from sqlalchemy.orm import InstanceState, ORMExecuteState, Session, SessionTransaction

from ...core.lock_info import DocumentKey, LockedName
from ...core.sqlalchemy_internals import buffer_rows, for_update_of
from ...options import LockOptions, is_row_lock
from ...session import LockingSession
from .places import places_of_program
from .rows import Row, entity_name, entity_of_class, row_of
from .sent import asks_for_lock
from .transactions import Read, RowLock, Transaction
from .watched import Watched, here


class SessionEvents:
    """Listeners of ``Session``; each method has the name of an event."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._guarded_begin = watched.guarded(self._begin_read)
        self._guarded_note = watched.guarded(self._note_locked)

    def after_begin(self, session: Session, _: SessionTransaction, connection: Connection) -> None:
        """Give the connection's statements to the session."""
        self._watched.use(connection, self._watched.session(session))

    def after_commit(self, session: Session) -> None:
        """Note that the outer transaction is committed, and not only a savepoint released."""
        if not session.in_nested_transaction():
            self._watched.session(session).committed = True

    def after_transaction_end(self, session: Session, transaction: SessionTransaction) -> None:
        """Forget the rows of the session's transaction."""
        if transaction.parent is None:
            self._watched.end_session(self._watched.session(session))

    def transient_to_pending(self, _: Session, instance: object) -> None:
        """Remember the line that adds a new object."""
        self._watched.added[inspect(instance)] = places_of_program()

    def do_orm_execute(self, run: ORMExecuteState) -> Result[Any] | None:
        """Remember the line that reads, and find out which rows a SELECT with a lock returns."""
        read = self._guarded_begin(run) if run.is_select else None
        if read is None or not read.locked or run.execution_options.get("yield_per"):
            return None
        result = run.invoke_statement()
        if hasattr(result, "iterator"):  # rows of objects, not of columns
            self._guarded_note(run.session, read, buffer_rows(result))
        return result

    def _begin_read(self, run: ORMExecuteState) -> Read:
        seen = self._watched.session(run.session)
        statement = getattr(run.statement, "element", run.statement)
        mappers = run.all_mappers
        read = Read(places_of_program(), seen.transaction, statement, names_rows=bool(mappers))
        if asks_for_lock(statement):
            read.locked = bool(mappers)
            read.waits = _waits(statement)
        elif seen.transaction.first_lock is not None:
            seen.transaction.read_after_lock |= {entity_name(one) for one in mappers}
        seen.reading = read
        return read

    def _note_locked(self, session: Session, read: Read, rows: list[Any]) -> None:
        transaction = self._watched.session(session).transaction
        for row in rows:
            for value in row if isinstance(row, tuple) else (row,):
                state = inspect(value, raiseerr=False)
                if isinstance(state, InstanceState) and read.locks_rows_of(state.mapper):
                    self._note_kept(transaction, session, state, read)

    def _note_kept(
        self, transaction: Transaction, session: Session, state: InstanceState[Any], read: Read
    ) -> None:
        """Note the lock of an object's row, and that the object was not read again."""
        row, before = row_of(state), self._watched.reads.get(state)
        if row is None:
            return
        kept = before is not None and before is not read
        refreshes = isinstance(session, LockingSession)  # a lock of ours makes the object fresh
        if before is not None and kept and not refreshes and not transaction.protects(row, before):
            for rule in self._watched.rules:
                rule.kept_values(transaction, row, before, read)
        self._watched.acquire(transaction, row, read.lock)

    def lock_acquired(
        self, session: Session, document: DocumentKey | LockedName, lock: LockOptions, _: float
    ) -> None:
        """Note a lock of a LockingSession, which may be in its transaction and not in its SQL."""
        entity, key = document
        if entity is None or not is_row_lock(lock) or not isinstance(key, tuple):
            return
        row = Row(entity_of_class(entity), key)
        waits = not lock & (LockOptions.NoWait | LockOptions.SkipLocked)
        transaction = self._watched.session(session).transaction
        self._watched.acquire(transaction, row, RowLock(here(), waits=waits))


def _waits(statement: Any) -> bool:
    lock = None if not hasattr(statement, "with_for_update") else for_update_of(statement)
    return lock is None or not (lock.nowait or lock.skip_locked)
