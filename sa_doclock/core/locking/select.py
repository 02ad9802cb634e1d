"""The target of a select made by with_lock(): the session executes it, and gets its Result.

A statement that reads only the header's table locks and loads at once.  One that reads more (joined
inheritance, a join) is locked by its keys first and read afterwards: a locking SELECT shows the
other tables as of before its wait, and without ``FOR UPDATE OF`` it would lock their rows too.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import ClauseElement, ColumnElement, Result, Select
from sqlalchemy.orm.attributes import instance_state

from ...dialects.base import Locked, Reach, parameters_for_keys, read_beside
from ...errors import LockNotSupported
from ...keys import DocumentKey, Identity
from ...options import LockOptions, is_row_lock
from ...sqlalchemy_internals import (
    buffer_rows,
    for_update_tables,
    has_clauses,
    has_limit,
    has_offset,
    objects_at,
    only_columns,
    options_of,
    states_to_flush,
    without_options,
)
from ..documents import (
    has_subquery,
    header_table,
    key_columns,
    own_table,
    root_of,
    spans_rows,
    tables_of,
    tables_within,
    unread_columns,
)
from ..loading import load_again
from ..statements import (
    LockedEntity,
    add_candidate_hint,
    add_lock,
    chunks,
    drop_lock,
    in_order,
    key_in,
    key_not_in,
    lock_where,
    places_of,
    refuse_other_lock,
    refuse_streaming,
    refuse_unlockable_shape,
    statement_cache,
)
from ..transaction import LockContext, LockPlan, LockRequest
from .acquire import Found
from .locked_rows import LockedRows
from .unsaved_changes import refuse_unsaved
from .wait_limit import WaitLimit

Run = Callable[[Select[Any]], Result[Any]]
"""Executes a statement with the parameters and bind arguments of the caller."""


class RowsOfSelect(LockedRows[Result[Any]]):
    """The rows that a statement made by with_lock() returns.

    :param request: its ``bind_arguments`` are the caller's, with mapper and clause.
    """

    _beside: Sequence[ColumnElement[Any]] | None = ()
    """Columns that the locking statement reads only for the lock, and does not return; None: it may
    lock no row whatever it reads, and the rows are locked by their keys.
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
        self.options = statement.get_execution_options(), execution_options
        self._places = locked.places

    def check(self, request: LockRequest) -> None:
        refuse_streaming({**self._statement.get_execution_options(), **self._execution_options})
        if not has_clauses(self._statement, self._locked.clauses):
            self._check_changed()
        if self.context.options.ranks and is_row_lock(request.lock):
            self.context.ledger.check_order(root_of(self.mapper))

    def _check_changed(self) -> None:
        """Check the statement again, because the program has changed it since with_lock()."""
        locked = self._locked
        refuse_other_lock(self._statement, locked)
        if locked.eager:
            self._statement = without_options(self._statement, locked.eager)
        refuse_unlockable_shape(self._statement)
        self._places = places_of(locked.entity, self._statement.column_descriptions)

    def leave_out(self, documents: Collection[DocumentKey], most: int) -> bool:
        keys = [identity for _, identity in documents]
        key = key_columns(self._locked.entity)
        if len(keys) * len(key) > most:
            return False
        self._statement = self._statement.where(key_not_in(key, keys))
        self._beside = ()
        return True

    def expire(self, request: LockRequest) -> None:
        self.expire_loaded(root_of(self.mapper), None)

    def record(self, found: Found, request: LockRequest) -> Result[Any]:
        """Record the locked headers, and return the rows.

        :raises UnsavedChanges: one of the documents has pending changes; it is locked then.
        """
        if self.unreadable:
            load_again(self.session, self.unreadable)
        result: Result[Any] = found.rows
        ledger = self.context.ledger
        root = root_of(self.mapper)
        newly = [
            identity
            for identity in dict.fromkeys(found.keys)
            if not ledger.covers((root.class_, identity), request.lock)
        ]
        # A listener may just have changed one.
        if newly and any(states_to_flush(self.session)):
            refuse_unsaved(self.context, root, frozenset(newly), ask=True)
        for identity in newly:
            ledger.record((root.class_, identity), request.lock)
        return result

    def locking(self, plan: LockPlan, lock: LockOptions, *, whole_row: bool) -> Select[Any] | None:
        alone = _reads_header_alone(self._statement)
        statements = plan.strategy.statements
        if whole_row or statements.locked is Locked.SHARED_ENTRIES:
            entity = self._locked.entity
            alone_unread = alone and self._places and not options_of(self._statement)
            unread = unread_columns(entity) if alone_unread else header_table(entity).columns
            table = own_table(self.mapper)
            self._beside = read_beside(statements, self.request.lock, table, unread)
        if not alone or self._beside is None:
            return None
        statement = self.under_lock(lock)
        return statement.add_columns(*self._beside) if self._beside else statement

    def under_lock(self, lock: LockOptions) -> Select[Any]:
        """Return the statement with this lock.

        The lock differs from its own in a batch, or with a lock_timeout of 0; and on SQL Server for
        a SharedRead in a transaction that is open at READ COMMITTED.
        """
        if lock is self._locked.lock:
            return self._statement
        return add_lock(self._statement, self._locked.entity, lock)

    def lock_and_read(self, limit: WaitLimit, *, whole_row: bool) -> Found:
        entity, statements = self._locked.entity, limit.strategy.statements
        key = key_columns(entity)
        again = _without_lock(self._statement, entity)
        most = statements.max_parameters.keys // 2  # leaves the rest to the program
        most = min(most, parameters_for_keys(statements, len(key)))
        identities, order = self._lock_keys(key, limit, most, whole_row=whole_row)
        self._beside = ()
        if len(identities) * len(key) <= most:
            return self.read(again.where(key_in(key, identities)))._replace(keys=identities)
        return Found(self._read_in_chunks(again, key, identities, order, most), identities)

    def _lock_keys(
        self, key: Sequence[Any], limit: WaitLimit, most: int, *, whole_row: bool
    ) -> tuple[Sequence[Identity], Sequence[Identity]]:
        """Lock the headers of a statement that reads other rows too.

        :param most: the number of parameters for the keys of one statement.
        :returns: the keys of the headers, and those of all rows in the order of the statement.
        """
        run, entity, statement = self._run, self._locked.entity, self._statement
        skips_some = LockOptions.SkipLocked in limit.lock and has_limit(statement)

        def keys_of(locked: Select[Any]) -> list[Identity]:
            return [tuple(row[: len(key)]) for row in run(locked)]

        beside = self._beside if Reach.ONE_TABLE in limit.strategy.statements.reach else None
        if beside is not None and (skips_some or not whole_row):
            columns = [*key, *beside]
            found = limit.send(lambda lock: only_columns(self.under_lock(lock), columns), keys_of)
            return list(dict.fromkeys(found)), found
        # FOR UPDATE would lock all tables of the join: read the keys of the rows first.
        root = root_of(self.mapper)
        candidates = drop_lock(only_columns(statement, key), entity)
        candidates = add_candidate_hint(candidates, entity, limit.lock, limit.strategy)
        found = _candidates(run, candidates, skips_some=skips_some)
        identities: list[Identity] = []
        for some in [*chunks(in_order(root, set(found)), most)] or [()]:
            where = key_in(root.primary_key, some)
            locking = partial(lock_where, root, where=where, whole_row=whole_row)
            identities += limit.send(locking, keys_of)
        return identities, found

    def _read_in_chunks(
        self,
        statement: Select[Any],
        key: Sequence[Any],
        identities: Sequence[Identity],
        order: Sequence[Identity],
        most: int,
    ) -> Result[Any]:
        """Return the rows of these headers, which are too many for one statement.

        :param order: the keys of the rows, in the order in which they were found.
        """
        width = len(statement.column_descriptions)
        rows: defaultdict[Identity, deque[Any]] = defaultdict(deque)
        for some in chunks(identities, most):
            result = self._run(statement.where(key_in(key, some)).add_columns(*key))
            found = buffer_rows(result)
            for row in found:
                rows[tuple(row[-len(key) :])].append(row)
        left, ordered, limited = Counter(order), [], has_limit(statement)
        for identity in order:
            left[identity] -= 1
            # A join may have more rows by now, which follow the found ones.
            count = 1 if left[identity] or limited else len(rows[identity])
            ordered += [rows[identity].popleft() for _ in range(min(count, len(rows[identity])))]
        found[:] = ordered
        return result.columns(*range(width))

    def read(self, statement: Select[Any]) -> Found:
        """Return the rows, and the keys of the locked entity among them."""
        result = self._run(statement)
        headers = objects_at(self._places, buffer_rows(result))
        identities: list[Any]
        identities = [instance_state(header).identity for header in headers if header is not None]
        if self._beside:
            result = result.columns(*range(len(self._statement.column_descriptions)))
        return Found(result, identities)


@statement_cache
def _reads_header_alone(statement: Select[Any]) -> bool:
    """Return whether the statement reads only rows that its ``FOR UPDATE OF`` locks."""
    return statement.get_final_froms() == for_update_tables(statement) and not _reads_more(
        statement
    )


def _reads_more(statement: Select[Any]) -> bool:
    """Return whether a subquery among the columns would show the state before the wait."""
    undeferred = bool(options_of(statement))
    for described in statement.column_descriptions:
        expression = described["expr"]
        if expression is described["entity"]:
            if spans_rows(expression, undeferred=undeferred):
                return True
            continue
        while not isinstance(expression, ClauseElement):  # an attribute of a class, or a Bundle
            expression = expression.__clause_element__()
        if has_subquery(expression):
            return True
    return False


def _without_lock(statement: Select[Any], entity: Any) -> Select[Any]:
    joined = set(tables_within(statement.get_final_froms())) - set(tables_of(entity))
    if not joined:  # each key has one row, so the keys suffice
        return drop_lock(statement, entity).limit(None).offset(None)
    if has_offset(statement):
        raise LockNotSupported(
            "the rows of a join cannot be locked with OFFSET; page by the last key instead"
        )
    return drop_lock(statement, entity)


def _candidates(run: Run, keys: Select[Any], *, skips_some: bool) -> list[Identity]:
    """Return the keys of the rows to lock, as of before the lock."""
    if skips_some:
        raise LockNotSupported(
            "SKIP LOCKED with LIMIT is not supported here for a join, or for a table whose columns "
            "are all in an index; select the entity alone, and use EXISTS instead of the join"
        )
    return [tuple(row) for row in run(keys)]
