"""acquire(): the one sequence that takes every lock.

By key, by many keys, by a select, by name or for a claim; plain, limited in time, in a batch, at
a gate, or in a pipeline.  What differs between the kinds is in their :class:`LockTarget`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Final, Generic, NoReturn, TypeVar

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from ..dialects import strategies
from ..errors import DocLockError, LockMisuse, LockNotAvailable, LockOrderViolation
from ..monitoring import warn_of_cluster
from ..options import LockOptions, is_row_lock, may_queue
from ..sqlalchemy_internals import execute_listeners
from ..transaction import (
    LockCall,
    LockPlan,
    LockRequest,
    TransactionConnection,
    add_document,
    database_name,
    make_plan,
    noting_limited,
)
from .context import LockContext
from .execute_listeners import checked_listeners
from .wait_policy import retry_without_queueing

T = TypeVar("T")

_NOTHING: Final = nullcontext()
_FEW_ROWS: Final = 50
"""The most rows by their keys that one limit is for: to lock them takes time only while they are
waited for, so that a limit of the whole statement limits the waits."""
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
        self.request = request if context.routing is None else context.routing.route(request)
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

    def expire(self) -> None:
        """Expire what the session has loaded of it, so that what is read is not older."""

    def limit(
        self, call: LockCall, connection: TransactionConnection, plan: LockPlan
    ) -> AbstractContextManager[None]:
        """Return the block in which the lock is waited for, limited as ``call.attempt`` says."""
        return limit_wait(self.context, call, connection, plan)

    @abstractmethod
    def send(self, connection: TransactionConnection, plan: LockPlan, request: LockRequest) -> Any:
        """Send the statements that lock, and return what they have found."""

    @abstractmethod
    def record(self, found: Any, request: LockRequest) -> T:
        """Note in the ledger what was granted, and return what the caller gets."""


def acquire(target: LockTarget[T]) -> T:
    """Take one lock: check, queue, prepare the transaction, expire, send, record, report.

    :raises DocLockError: it names the document, the lock and the database.  After a failed lock
        the transaction that this call has opened is rolled back; another refuses all that follows.
    """
    context = target.context
    if context.failed is not None:
        context.failed.refuse()
    if context.connections.lost():
        context.note_lost()
    call: LockCall | None = None
    try:
        if target.is_held():
            return target.read_held()
        if context.call is not None:
            _refuse_inner_call(context.call)
        target.check()
        request = target.request
        call = LockCall(context, request)
        if context.options.wait.batch and may_queue(request.lock):
            result = _take_in_batch(call, request, target)
        elif context.queue is not None:
            result = _take_in_turn(call, request, target)
        else:
            result = _take(call, request, target)
    except BaseException as error:
        if call is not None:
            call.failed(context, error)
        if isinstance(error, DocLockError):
            _complete(error, target)
        raise
    call.granted(context)
    return result


def _complete(error: DocLockError, target: LockTarget[Any]) -> None:
    """Put the document, the lock and the database into the error of a call."""
    request = target.request
    database = database_name(target.session, request.bind_arguments)
    add_document(error, request.entity, request.ident, request.lock, database)
    if isinstance(error, LockOrderViolation):  # the one misuse that shows under load alone
        target.context.instrumentation.report_order_violation(error)


def _refuse_inner_call(call: LockCall) -> NoReturn:
    """:raises LockMisuse: this session is taking another lock, and has called what calls us."""
    raise LockMisuse(
        f"the session is taking the lock of {call.request.document}, and this call comes out of "
        "it, from a listener for load, refresh or do_orm_execute; take this lock when that call "
        "has returned"
    )


def _take_in_batch(call: LockCall, request: LockRequest, target: LockTarget[T]) -> T:
    """Try without waiting, and pause, until the time is over."""
    assert request.seconds is not None

    def attempt(left: float) -> T:
        at_once = request._replace(lock=request.lock | LockOptions.NoWait, seconds=left)
        return _take_in_turn(call, at_once, target)

    return retry_without_queueing(request.seconds, attempt, target.context.pause)


def _take_in_turn(call: LockCall, request: LockRequest, target: LockTarget[T]) -> T:
    """Take the lock when it is this session's turn at the gate, where there is one."""
    queue = target.context.queue
    if queue is None:
        return _take(call, request, target)
    try:
        result = _take(call, queue.enter(request, call), target)
    except BaseException:
        queue.leave_ungranted()
        raise
    queue.note_granted(request)
    return result


def _take(call: LockCall, request: LockRequest, target: LockTarget[T]) -> T:
    context, session = target.context, target.session
    if not session.is_active:
        session.connection()  # raises PendingRollbackError, as after a failed flush
    bind = session.get_bind(**request.bind_arguments)
    strategy = strategies.get(bind.dialect) or context.connections.learn(bind)
    lock = request.lock if target.transaction_lock is None else target.transaction_lock
    plan = strategy.plans.get((request.mapper, lock)) or make_plan(request.mapper, lock, strategy)
    if strategy.compatible is not None:
        strategy.compatible.check_request(request.seconds, named=request.mapper is None)
    if strategy.cluster is not None:
        warn_of_cluster(strategy, plan.lock, named=request.mapper is None)
    seconds = 0.0 if request.lock in _AT_ONCE else request.seconds
    connection = context.connections.prepare(bind, strategy, plan, seconds)
    if context.routing is not None:
        context.routing.pin(request.mapper, bind)
    if isinstance(bind, Connection):
        context.connections.watch(connection, lent=True)
    call.attempt = request
    if session.identity_map:
        target.expire()
    waits_as_configured = (
        request.seconds is None
        and may_queue(request.lock)
        and context.pipeline is None
        and context.connections.hold_limit is None
    )
    listeners = request.mapper is not None and execute_listeners(session)
    # Not by "no_autoflush", which costs three times as much; and not by the execution option,
    # which counts neither for Core nor for what loader options send.
    autoflush, session.autoflush = session.autoflush, False
    try:
        if waits_as_configured and not listeners:  # most locks: without a block, which costs calls
            found = target.send(connection, plan, request)
        else:
            with (
                _NOTHING if waits_as_configured else target.limit(call, connection, plan),
                _checked_listeners(session, connection, plan) if listeners else _NOTHING,
            ):
                found = target.send(connection, plan, request)
        if not connection.begun:  # as note_lock() does, without a call more
            connection.begun = strategy.in_transaction(connection.connection) is not False
        if strategy.has_transaction_ids or not connection.begun:
            connection.note_lock(strategy)
        return target.record(found, request)
    finally:
        session.autoflush = autoflush


def _checked_listeners(
    session: Session, connection: TransactionConnection, plan: LockPlan
) -> AbstractContextManager[None]:
    return checked_listeners(session, row_lock=is_row_lock(connection.row_lock(plan)))


def limit_wait(
    context: LockContext, call: LockCall, connection: TransactionConnection, plan: LockPlan
) -> AbstractContextManager[None]:
    """Return a block that limits its waits; in a batch, a lock that is not available is undone.

    The first lock of a session with a hold_limit limits the transaction too.
    """
    request, own = call.attempt, connection.connection
    few_rows, hold_limit = 1 <= len(request.keys) <= _FEW_ROWS, None
    if context.connections.hold_limit is not None:
        hold_limit = context.connections.hold_limit.before_lock(connection, request.lock)
    if context.pipeline is not None:
        limit = context.pipeline.locking(own, request, few_rows=few_rows, hold_limit=hold_limit)
    elif hold_limit is not None:
        limit = connection.strategy.waiting_then_limited(
            own, request.lock, request.seconds, hold_limit, few_rows=few_rows
        )
    elif few_rows:
        limit = connection.strategy.waiting_for_rows(own, request.lock, request.seconds)
    else:
        limit = connection.strategy.waiting(own, request.lock, request.seconds)
    if hold_limit is not None:
        limit = noting_limited(connection, limit)
    tries = context.options.wait.batch and LockOptions.NoWait in request.lock
    if tries and is_row_lock(connection.row_lock(plan)):
        return _undone_by_savepoint(context, call, own, limit)
    return limit


@contextmanager
def _undone_by_savepoint(
    context: LockContext,
    call: LockCall,
    connection: Connection,
    block: AbstractContextManager[None],
) -> Iterator[None]:
    """Run the block; a lock that is not available changes nothing.

    On PostgreSQL the error aborts the transaction, and on all a lock on several rows may have
    got some of them.
    """
    savepoint = connection.begin_nested()
    call.undone_by_savepoint = True
    try:
        with block:
            yield
    except LockNotAvailable:
        if not context.server_has_rolled_back():
            savepoint.rollback()
            call.met = None
        raise
    except BaseException:
        with suppress(Exception):  # where the server has rolled back everything, or is gone
            savepoint.rollback()
        raise
    finally:
        call.undone_by_savepoint = False
    savepoint.commit()
