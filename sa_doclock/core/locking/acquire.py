"""acquire(): the one sequence that takes every lock.

By key, by many keys, by a select, by name, for a claim, or by the program's own
``with_for_update()``.  What differs between the kinds is in
their :class:`LockTarget`; what features add is in the session's parts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Final, Generic, TypeVar, cast

from sqlalchemy import Connection, Engine

from ...dialects import strategies
from ...dialects.base import LockStrategy
from ...errors import DocLockError, LockMisuse, LockOrderViolation
from ...options import LockOptions, is_row_lock, may_queue
from ..instrumentation import warn_of_cluster
from ..sqlalchemy_internals import execute_listeners
from ..transaction import (
    Limit,
    LockCall,
    LockContext,
    LockPlan,
    LockRequest,
    Take,
    TransactionConnection,
    add_document,
    database_name,
    is_of_few_rows,
    make_plan,
)
from .execute_listeners import checked_listeners
from .outcome import begin_call, end_failed, end_granted, roll_back_or_refuse

T = TypeVar("T")

_AT_ONCE: Final = frozenset(
    lock | LockOptions.NoWait
    for lock in (
        LockOptions.ForUpdate,
        LockOptions.ForUpdate | LockOptions.NoKey,
        LockOptions.SharedRead,
    )
)


class LockTarget(ABC, Generic[T]):
    """The rows, or the name, that one call locks.

    The methods are called in this order, by :func:`acquire`.
    """

    transaction_lock: LockOptions | None = None
    """The lock that the transaction is made fit for, where it is not the one of the request."""

    def __init__(self, context: LockContext, request: LockRequest) -> None:
        self.context = context
        self.session = context.session()
        for route in context.parts.route:
            request = route(request)
        self.request = request
        self.mapper: Any = request.mapper

    def is_held(self) -> bool:
        """Return whether all of it is held already, as strongly as was asked for.

        :raises LockUpgradeRefused: it is held by a read lock.
        """
        return False

    def read_held(self) -> T:
        """Return it, where it is held already."""
        raise TypeError(f"of {type(self).__name__} nothing is held before")

    def check(self) -> None:
        """Refuse what can be refused before anything is sent.

        :raises DocLockError: this program, statement or class cannot take the lock.
        """

    def prepare(
        self, bind: Engine | Connection, strategy: LockStrategy, request: LockRequest
    ) -> tuple[TransactionConnection, LockPlan]:
        """Return the connection to take the lock on, its transaction fit for it, and the plan.

        :raises LockNotSupported: this database or connection cannot give the lock.
        :raises WrongIsolation: the transaction is open already, and is not fit.
        """
        lock = self.transaction_lock or request.lock
        plan = strategy.plans.get((self.mapper, lock)) or make_plan(self.mapper, lock, strategy)
        seconds = 0.0 if request.lock in _AT_ONCE else request.seconds
        return self.context.connections.prepare(bind, strategy, plan, seconds), plan

    def expire(self) -> None:
        """Expire what the session has loaded of it, so that what is read is not older."""

    limits_itself = False
    """True if ``send()`` limits its wait itself."""

    lasts = True
    """False if ``send()`` has locked nothing that is held when its statements have ended."""

    @abstractmethod
    def send(self, connection: TransactionConnection, plan: LockPlan, request: LockRequest) -> Any:
        """Send the statements that lock, and return what they have found."""

    @abstractmethod
    def record(self, found: Any, request: LockRequest) -> T:
        """Note in the ledger what was granted, and return what the caller gets."""

    def undo(self, call: LockCall, error: BaseException) -> None:
        """Undo what the call has done, which ends with this error."""
        roll_back_or_refuse(self.context, call, error)


def acquire(target: LockTarget[T]) -> T:
    """Take one lock: check, queue, prepare the transaction, expire, send, record, report.

    :raises DocLockError: it names the document, the lock and the database.  After a failed lock
        the transaction that this call has opened is rolled back; another refuses all that follows.
        What the program's own statement meets is left to the program.
    """
    context = target.context
    if context.failure.occurred:
        context.failure.refuse()
    context.transaction.check_locks()
    call: LockCall | None = None
    try:
        if target.is_held():
            return target.read_held()
        if context.calls.current is not None and not target.request.adopted:
            _refuse_inner_call(context.calls.current)
        target.check()
        call = begin_call(context, target.request)
        take: Take = _take
        for around_take in context.parts.around_take:
            take = around_take(take)
        result = take(call, target.request, target)
    except BaseException as error:
        if call is not None:
            end_failed(context, call, error, target.undo)
        if isinstance(error, DocLockError):
            _complete(error, target)
        raise
    end_granted(context, call)
    return cast("T", result)


def _complete(error: DocLockError, target: LockTarget[Any]) -> None:
    """Put the document, the lock and the database into the error of a call."""
    request = target.request
    database = database_name(target.session, request.bind_arguments)
    add_document(error, request.entity, request.ident, request.lock, database)
    if isinstance(error, LockOrderViolation):  # the one misuse that shows under load alone
        target.context.instrumentation.report_order_violation(error)


def _refuse_inner_call(call: LockCall) -> None:
    """Refuse a lock that a listener takes, except of the program's own statement.

    :raises LockMisuse: this session is taking another lock, and has called what calls us.
    """
    if call.request.adopted:
        return
    raise LockMisuse(
        f"the session is taking the lock of {call.request.document}, and this call comes out of "
        "it, from a listener for load, refresh or do_orm_execute; take this lock when that call "
        "has returned"
    )


def _take(_call: LockCall, request: LockRequest, target: LockTarget[Any]) -> Any:
    """Take the lock: prepare the transaction, expire what is loaded, send, record."""
    context, session, mapper = target.context, target.session, request.mapper
    bind, strategy = _database_of(request, target)
    connection, plan = target.prepare(bind, strategy, request)
    if isinstance(bind, Connection):
        context.connections.watch(connection, lent=True)
    for bound in context.parts.bound:
        if mapper is not None or request.named:
            bound(mapper, bind)
    if session.identity_map:
        target.expire()
    # Not by "no_autoflush", which costs three times as much; and not by the execution option,
    # which counts neither for Core nor for what loader options send.
    autoflush = session.autoflush
    session.autoflush = autoflush and request.adopted
    try:
        found = _send(connection, plan, request, target)
        if target.lasts:
            connection.note_lock(strategy)
        return target.record(found, request)
    finally:
        session.autoflush = autoflush


def _database_of(
    request: LockRequest, target: LockTarget[Any]
) -> tuple[Engine | Connection, LockStrategy]:
    """Return the database of the lock, and its dialect.

    :raises LockNotSupported: this server cannot give the lock.
    """
    session = target.session
    if not session.is_active:
        session.connection()  # raises PendingRollbackError, as after a failed flush
    bind = session.get_bind(**request.bind_arguments)
    strategy = strategies.get(bind.dialect) or target.context.connections.learn(bind)
    if strategy.compatible is not None:
        strategy.compatible.check_request(request.seconds, named=request.named)
    if strategy.cluster is not None:
        warn_of_cluster(strategy, request.lock, named=request.named)
    return bind, strategy


def _send(
    connection: TransactionConnection,
    plan: LockPlan,
    request: LockRequest,
    target: LockTarget[Any],
) -> Any:
    """Send the statements: their wait limited, and what listeners make of them checked."""
    no_limit = target.limits_itself or (request.seconds is None and may_queue(request.lock))
    checked = request.mapper and execute_listeners(target.session) and not request.adopted
    if no_limit and not checked and not target.context.parts.around_limit:  # without a block
        return target.send(connection, plan, request)
    with ExitStack() as stack:
        if checked:
            row_lock = is_row_lock(connection.row_lock(plan))
            stack.enter_context(checked_listeners(target.session, row_lock=row_lock))
        limited = stack.enter_context(_limit_for(target)(connection, plan, request))
        return target.send(connection, plan, limited)


def _limit_for(target: LockTarget[Any]) -> Limit:
    """Return what limits the wait of this lock."""
    limit: Limit = _no_limit if target.limits_itself else _limit
    for around_limit in target.context.parts.around_limit:
        limit = around_limit(limit)
    return limit


@contextmanager
def _limit(
    connection: TransactionConnection, _plan: LockPlan, request: LockRequest
) -> Iterator[LockRequest]:
    """Limit the wait as the request says."""
    waits, few_rows = connection.strategy.waits, is_of_few_rows(request)
    with waits.limited(connection.connection, request.lock, request.seconds, few_rows=few_rows):
        yield request


def _no_limit(
    _connection: TransactionConnection, _plan: LockPlan, request: LockRequest
) -> AbstractContextManager[LockRequest]:
    return nullcontext(request)
