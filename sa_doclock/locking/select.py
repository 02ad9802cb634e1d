"""A select made by with_lock(), executed in a LockingSession.

A statement that reads the header's table alone locks and loads in one go.  One that
reads more (joined inheritance, a join) is locked by its keys first and read after: a
locking SELECT shows the other tables as they were before its wait, and where there is no
``FOR UPDATE OF`` it would lock their rows along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sqlalchemy import ClauseElement, ColumnElement, Result, Select, inspect
from sqlalchemy.orm import Mapper

from ..dialects.base import LockStrategy
from ..documents import (
    document_key,
    has_subquery,
    header_table,
    key_attributes,
    root_of,
    spans_rows,
    tables_of,
    tables_within,
)
from ..errors import LockNotSupported
from ..lock_info import Identity
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
    refuse_other_lock,
    refuse_streaming,
    refuse_unlockable_shape,
    run_within,
)
from ..transaction import LockPlan, LockRequest, TransactionConnection
from .acquire import LockTarget
from .context import LockContext
from .load_parts import load_again
from .refresh import Unreadable, expire_documents, refuse_unsaved

Run = Callable[[Select[Any]], Result[Any]]
"""Executes a statement with the parameters and bind arguments of the caller."""


class RowsOfSelect(LockTarget[Result[Any]]):
    """The rows that a statement made by with_lock() returns.

    :param request: its ``bind_arguments`` are those of the caller, with mapper and clause.
    """

    def __init__(
        self,
        context: LockContext,
        request: LockRequest,
        statement: Select[Any],
        locked: LockedEntity,
        run: Run,
        execution_options: Mapping[str, Any],
    ) -> None:
        super().__init__(context, request)
        self._statement, self._locked, self._run = statement, locked, run
        self._execution_options = execution_options
        self._unreadable: Unreadable = {}

    def check(self) -> None:
        own_options = self._statement.get_execution_options()
        refuse_other_lock(self._statement, self._locked)
        refuse_streaming({**own_options, **self._execution_options})
        self._statement = without_options(self._statement, self._locked.eager)
        refuse_unlockable_shape(self._statement)
        if is_row_lock(self.request.lock):
            self.context.ledger.check_order(root_of(self.mapper))

    def expire(self) -> None:
        root, held = root_of(self.mapper), self.context.ledger.held
        self._unreadable = expire_documents(self.session, root, None, held)

    def send(
        self, connection: TransactionConnection, plan: LockPlan, request: LockRequest
    ) -> tuple[Result[Any], Iterable[Identity]]:
        """Return the rows, and the keys of the headers that were locked.

        :raises UnsavedChanges: one of the documents has pending changes; it is locked then.
        """
        row_lock = connection.row_lock(plan)
        if not is_row_lock(row_lock):  # the lock is the transaction's
            found = self._read(self._locking(request.lock))
        else:
            assert plan.table is not None
            connection.strategy.check_table(connection.connection, plan.table)
            found = self._lock(connection.strategy, row_lock, request)
        load_again(self.session, self._unreadable)
        return found

    def record(
        self, found: tuple[Result[Any], Iterable[Identity]], request: LockRequest
    ) -> Result[Any]:
        result, identities = found
        ledger = self.context.ledger
        documents = {one: document_key(self.mapper, one) for one in identities}
        newly = {
            identity: document
            for identity, document in documents.items()
            if not ledger.covers(document, request.lock)
        }
        if newly:
            refuse_unsaved(self.session, root_of(self.mapper), newly.keys(), ask=True)
        for document in newly.values():
            ledger.record(document, request.lock)
        return result

    def _locking(self, lock: LockOptions) -> Select[Any]:
        """Return the statement with this lock.

        It is another than its own in a batch, or with a lock_timeout of 0; and on SQL Server for
        a SharedRead in a transaction that is open at READ COMMITTED.
        """
        if lock is self._locked.lock:
            return self._statement
        return add_lock(self._statement, self._locked.entity, lock)

    def _lock(
        self, strategy: LockStrategy, row_lock: LockOptions, request: LockRequest
    ) -> tuple[Result[Any], Iterable[Identity]]:
        seconds, run = request.seconds, self._run
        entity, statement = self._locked.entity, self._statement
        if statement.get_final_froms() == [header_table(entity)] and not _reads_more(statement):
            return run_within(seconds, strategy, row_lock, self._locking, self._read)
        key = [getattr(entity, name) for name in key_attributes(self.mapper)]
        again = _without_lock(statement, entity)
        if strategy.locks_one_table_of_join():
            identities = run_within(
                seconds,
                strategy,
                row_lock,
                lambda lock: only_columns(self._locking(lock), key),
                lambda keys: _distinct(run(keys)),
            )
        else:
            root = root_of(self.mapper)
            where = _candidates(run, only_columns(statement, key), root, row_lock)
            identities = run_within(
                seconds,
                strategy,
                row_lock,
                lambda lock: lock_where(root, lock, where),
                lambda keys: _distinct(row[: len(key)] for row in run(keys)),
            )
        return self._read(again.where(key_in(key, identities)))[0], identities

    def _read(self, statement: Select[Any]) -> tuple[Result[Any], Iterable[Identity]]:
        """Return the rows, and the keys of the entity that is locked among them."""
        frozen = self._run(statement).freeze()
        positions = [
            position
            for position, described in enumerate(statement.column_descriptions)
            if described["expr"] is self._locked.entity
        ]
        identities = [
            inspect(row[position]).identity
            for row in (frozen() if positions else ())
            for position in positions
            if row[position] is not None
        ]
        return frozen(), identities


def _reads_more(statement: Select[Any]) -> bool:
    """Return whether a subquery among the columns would show what there was before the wait."""
    for described in statement.column_descriptions:
        found = inspect(described["expr"], raiseerr=False)
        mapper = getattr(found, "mapper", None)
        if mapper is not None and described["expr"] is described["entity"]:
            if spans_rows(mapper, undeferred=bool(options_of(statement))):
                return True
        elif isinstance(described["expr"], ClauseElement) and has_subquery(described["expr"]):
            return True
    return False


def _without_lock(statement: Select[Any], entity: Any) -> Select[Any]:
    """Return the SELECT of the same rows without the lock, to which their keys are added."""
    joined = set(tables_within(statement.get_final_froms())) - set(tables_of(entity))
    if not joined:  # a row a key, so the keys tell all
        return without_lock(statement).limit(None).offset(None)
    if has_offset(statement):
        raise LockNotSupported("the rows of a join cannot be locked with OFFSET; use the last key")
    return without_lock(statement)


def _candidates(
    run: Run, keys: Select[Any], root: Mapper[Any], row_lock: LockOptions
) -> ColumnElement[bool]:
    """Return the condition for the rows to lock, which are looked for before.

    So it is where FOR UPDATE would lock all tables of the join.
    """
    if LockOptions.SkipLocked in row_lock and has_limit(keys):
        raise LockNotSupported(
            "this database cannot skip the locked rows of a join with LIMIT; "
            "select the entity alone, with EXISTS in place of the join"
        )
    return key_in(root.primary_key, _distinct(run(without_lock(keys))))


def _distinct(rows: Iterable[Any]) -> list[Identity]:
    return list(dict.fromkeys(tuple(row) for row in rows))
