"""LockedRows: the one place that sends the SELECTs of a lock."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Select
from sqlalchemy.orm.interfaces import ORMOption

from ...dialects.base import LockStrategy
from ...errors import DeadlockDetected
from ...options import LockOptions, is_row_lock
from ..lock_info import Identity
from ..statements import run_within
from ..transaction import LockContext, LockPlan, LockRequest, TransactionConnection
from .acquire import LockTarget

T = TypeVar("T")
R = TypeVar("R")

Statement = Callable[[LockOptions], Select[Any]]
"""Returns the SELECT that carries this lock."""


class Send(NamedTuple):
    """Sends the statements of one lock, their wait limited.

    :ivar row_lock: the lock that they carry.
    :ivar whole: they have to read all columns of the row; see ``LockStatements.locks_what_is_read``.
    """

    strategy: LockStrategy
    row_lock: LockOptions
    seconds: float | None
    whole: bool

    def __call__(self, statement_for: Statement, run: Callable[[Select[Any]], R]) -> R:
        """Return what ``run`` makes of the statement for the lock."""
        return run_within(self.seconds, self.strategy, self.row_lock, statement_for, run)


class LockedRows(LockTarget[T]):
    """Rows of a mapped class, which SELECTs lock and read.

    A subclass has the statements; :meth:`send_select` says which of them are sent.
    """

    found_by_key = False
    """True if no time goes by but for a lock, so that any limit that ends a statement is about it."""

    binds: dict[str, Connection]
    """The bind arguments of its statements, from the sending on."""

    @abstractmethod
    def in_one_statement(self, *, whole: bool) -> bool:
        """Return whether one SELECT can lock the rows and read all that is asked for.

        It cannot where it reads other tables too: it would show their rows as they were before
        its wait.

        :param whole: it has to read all columns of the row; see ``LockStatements.locks_what_is_read``.
        """

    @abstractmethod
    def locking(self, lock: LockOptions, *, whole: bool) -> Select[Any]:
        """Return the SELECT that locks the rows and reads them."""

    def under_lock(self, lock: LockOptions) -> Select[Any]:
        """Return the SELECT that reads the rows, where the transaction has the lock."""
        return self.locking(lock, whole=False)

    @abstractmethod
    def read(self, statement: Select[Any]) -> Any:
        """Execute it, and return what it has found."""

    @abstractmethod
    def lock_and_read(self, send: Send) -> Any:
        """Lock the rows by statements of their own, then read them."""

    def lock_keys(
        self, send: Send, locking: Statement, parameters: Mapping[str, Any]
    ) -> list[Identity]:
        """Lock rows of the root's table by a SELECT of their keys, and return these."""
        width = len(self.mapper.primary_key)

        def keys_of(statement: Select[Any]) -> list[Identity]:
            rows = self.context.calls.execute_own(self.session, statement, parameters, self.binds)
            return [tuple(row[:width]) for row in rows]

        return send(locking, keys_of)

    def send_select(
        self, connection: TransactionConnection, plan: LockPlan, request: LockRequest
    ) -> Any:
        """Lock the rows and read them, by as few statements as this database and class allow."""
        self.binds = {"bind": connection.connection}
        row_lock = connection.row_lock(plan)
        if not is_row_lock(row_lock):  # the lock is the transaction's
            return self.read(self.under_lock(request.lock))
        strategy = connection.strategy
        assert plan.table is not None
        try:
            strategy.check_table(connection.connection, plan.table)
        except DeadlockDetected as error:
            self.context.failure.note_ended_at_question(error, self.context.calls.current)
            raise
        whole = strategy.statements.locks_what_is_read
        in_one = self.in_one_statement(whole=whole)
        if in_one and self.found_by_key and request.seconds is None:
            return self.read(self.locking(row_lock, whole=whole))
        send = Send(strategy, row_lock, request.seconds, whole)
        if in_one:
            return send(partial(self.locking, whole=whole), self.read)
        return self.lock_and_read(send)


def objects_of(
    context: LockContext,
    statement: Select[Any],
    parameters: Mapping[str, Any],
    options: Sequence[ORMOption] = (),
    bind_arguments: dict[str, Any] | None = None,
) -> list[Any]:
    """Return the objects of a SELECT of ours.

    :param options: loader options of the caller.
    """
    if options:
        statement = statement.options(*options)
    session = context.session()
    found = context.calls.execute_own(session, statement, parameters, bind_arguments)
    return list(found.scalars().unique())
