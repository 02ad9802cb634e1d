"""LockedRows: rows that SELECTs lock and read.  No other place sends the SELECTs of a lock."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar, cast

from sqlalchemy import Connection, Select
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.orm.interfaces import ORMOption

from ...dialects import SCHEMA_OPTION
from ...dialects.base import Locked
from ...errors import DeadlockDetected
from ...keys import Identity
from ...options import LockOptions, is_row_lock
from ..loading import Unreadable
from ..transaction import LockPlan, LockRequest, TransactionConnection
from .acquire import Found, LockTarget
from .wait_limit import Statement, WaitLimit

T = TypeVar("T")

_NOTHING: Final[Unreadable] = {}  # Threads: never changed.


class LockedRows(LockTarget[T]):
    """Rows of a mapped class, which SELECTs lock and read.

    A subclass has the statements; :meth:`send_select` decides which of them to send.

    :ivar unreadable: expired parts that no access loads: they are loaded again under the lock.
    :ivar binds: the bind arguments of its statements, once they are sent.
    """

    unreadable: Unreadable = _NOTHING
    binds: dict[str, Connection]

    def expire_loaded(self, root: Mapper[Any], keys: Collection[Identity] | None) -> None:
        """Expire the loaded objects of these documents; see ``DocumentIndex.expire()``."""
        index = self.context.loaded.of(root)
        index.refuse_other_tokens(keys)
        before, self.unreadable = self.unreadable, index.expire(keys)
        for part, owners in before.items():
            self.unreadable.setdefault(part, []).extend(owners)

    @abstractmethod
    def locking(self, plan: LockPlan, lock: LockOptions, *, whole_row: bool) -> Select[Any] | None:
        """Return the SELECT that locks the rows and reads them; None if one cannot do both.

        If it read other tables too, it would show their rows as of before its wait.
        """

    @abstractmethod
    def under_lock(self, lock: LockOptions) -> Select[Any]:
        """Return the SELECT that reads the rows, if the transaction has the lock."""

    @abstractmethod
    def read(self, statement: Select[Any]) -> Found:
        """Execute the statement, and return its rows."""

    @abstractmethod
    def lock_and_read(self, limit: WaitLimit, *, whole_row: bool) -> Found:
        """Lock the rows by separate statements, then read them."""

    def lock_keys(
        self, limit: WaitLimit, locking: Statement, parameters: Mapping[str, Any]
    ) -> list[Identity]:
        """Lock rows of the root's table by a SELECT of their keys, and return these."""
        width = len(self.mapper.primary_key)

        def keys_of(statement: Select[Any]) -> list[Identity]:
            rows = Session.execute(self.session, statement, parameters, bind_arguments=self.binds)
            return [tuple(row[:width]) for row in rows]

        return limit.send(locking, keys_of)

    def send_select(
        self, connection: TransactionConnection, plan: LockPlan, request: LockRequest
    ) -> Found:
        """Lock the rows and read them, by as few statements as this database and class allow."""
        self.binds = {"bind": connection.connection}
        row_lock = connection.row_lock(plan)
        if not is_row_lock(row_lock):  # the lock covers the transaction
            table, at = plan.table, connection.connection
            if (
                table is not None
                and plan.strategy.statements.locked is Locked.DATABASE
                and (table.schema or SCHEMA_OPTION in at.get_execution_options())
            ):
                plan.strategy.check_table(at, table, plan.lock, request.seconds)
            return self.read(self.under_lock(request.lock))
        strategy = plan.strategy
        assert plan.table is not None
        try:
            strategy.check_table(connection.connection, plan.table, plan.lock)
        except DeadlockDetected as error:
            self.context.transaction.note_ended_at_question(error, self.context.calls.current)
            raise
        whole_row = strategy.statements.locked is Locked.WHAT_IS_READ
        statement = self.locking(plan, row_lock, whole_row=whole_row)
        if statement is not None and request.seconds is None and not plan.may_be_slow:
            return self.read(statement)  # the usual case: no limit
        limit = WaitLimit(strategy, row_lock, request.seconds, self.context.calls.current)
        if statement is None:
            return self.lock_and_read(limit, whole_row=whole_row)
        locking = cast("Statement", partial(self.locking, plan, whole_row=whole_row))
        return limit.send(locking, self.read, statement)

    send = send_select


def objects_of(
    session: Session,
    statement: Select[Any],
    parameters: Mapping[str, Any],
    options: Sequence[ORMOption] = (),
    bind_arguments: dict[str, Any] | None = None,
    before_load: Callable[[], None] | None = None,
) -> list[Any]:
    """Execute a SELECT of ours, by Session.execute(), because the session's own looks for locks.

    :param options: loader options of the caller.
    :param before_load: called after listeners of the engine, before a row is loaded.
    :returns: the objects found.
    """
    if options:
        statement = statement.options(*options)
    found = Session.execute(session, statement, parameters, bind_arguments=bind_arguments)
    if before_load is not None and bind_arguments is not None:
        heard = bind_arguments["bind"].dispatch
        if heard.before_cursor_execute or heard.before_execute:
            before_load()
    return list(found.scalars().unique())
