"""acquire(): the one sequence that takes every lock, and returns what the program gets for it.

By key, by many keys, by a select, by name, for a claim, or by a statement of the program's own.
What differs between the kinds is in their :class:`LockTarget`; what features add is in the
session's parts.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, UnboundExecutionError
from sqlalchemy.orm import Mapper, Session

from ...dialects import strategies
from ...dialects.base import LockStrategy
from ...errors import (
    DocLockError,
    LockFailed,
    LockMisuse,
    LockNotSupported,
    LockOrderViolation,
    UnsavedChanges,
)
from ...events import RequestedLock, listened
from ...options import LockOptions, is_row_lock, may_queue
from .. import instrumentation
from ..documents import parts_of
from ..lock_info import DocumentKey, LockedName
from ..row_place import RowPlace, place_of
from ..sqlalchemy_internals import execute_listeners
from ..transaction import (
    Condition,
    Limit,
    LockCall,
    LockContext,
    LockPlan,
    LockRequest,
    Take,
    TransactionConnection,
    add_document,
    database_name,
    make_plan,
    watch,
)
from .execute_listeners import checked_listeners

T = TypeVar("T")

_log = logging.getLogger("sa_doclock")

_AT_ONCE: Final = frozenset(
    lock | LockOptions.NoWait
    for lock in (
        LockOptions.ForUpdate,
        LockOptions.ForUpdate | LockOptions.NoKey,
        LockOptions.SharedRead,
    )
)

_FEW_ROWS: Final = 50
"""The most rows by their keys that one limit is for: to lock them takes time only while they are
waited for, so that a limit of the whole statement limits the waits."""


class LockTarget(ABC, Generic[T]):
    """The rows, or the name, that one call locks.

    The methods are called in this order, by :func:`acquire`.

    :ivar transaction_lock: the lock that the transaction is made fit for, where it is not the one of
        the request.
    :ivar limits_itself: ``send()`` limits its wait itself.
    :ivar lasts: False if ``send()`` has locked nothing that is held when its statements have ended.
    :ivar options: the execution options of its statements, beside those of the connection.
    :ivar unsaved: the error of some of its rows, to be raised when the others are recorded and
        reported.
    """

    transaction_lock: LockOptions | None = None
    limits_itself = False
    lasts = True
    options: Sequence[Mapping[str, Any]] = ()
    unsaved: UnsavedChanges | None = None

    def __init__(self, context: LockContext, request: LockRequest) -> None:
        self.context = context
        self.session = context.session()
        for route in context.parts.route:
            request = route(request)
        self.request = request
        self.mapper: Any = request.mapper

    def roots(self) -> Collection[Mapper[Any]]:
        """Return the roots of the documents that it locks."""
        return ()

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
        plan = strategy.plans.get((self.mapper, lock, False)) or make_plan(
            self.mapper, lock, strategy
        )
        seconds = 0.0 if request.lock in _AT_ONCE else request.seconds
        return self.context.opener.prepare(bind, plan, seconds), plan

    def expire(self) -> None:
        """Expire what the session has loaded of it, so that what is read is not older.

        It is called just before :meth:`send`, and once more where listeners of the program have
        been called since.

        :raises UnsavedChanges: listeners have changed it before the lock.
        """

    def before_flush(self) -> None:
        """Make the session's objects fit for the flush of a listener, during the call."""

    @abstractmethod
    def send(self, connection: TransactionConnection, plan: LockPlan, request: LockRequest) -> Any:
        """Send the statements that lock, and return what they have found."""

    @abstractmethod
    def record(self, found: Any, request: LockRequest) -> T:
        """Note in the ledger what was granted, and return what the caller gets."""

    def leave_out(self, documents: Collection[DocumentKey], most: int) -> bool:
        """Leave these documents out when it is sent and recorded again.

        :param most: the number of parameters that its statement may have for their keys.
        :returns: False if it cannot.
        """
        return False

    def undo(self, call: LockCall, error: BaseException) -> None:
        """Undo what the call has done, which ends with this error.

        The transaction that it has opened is rolled back; another refuses all that follows.
        """
        if call.opens:
            self.context.roll_back_quietly()
        elif _is_failure_of_lock(call, error):
            self.context.transaction.refuse_from_now_on(error)


def acquire(target: LockTarget[T]) -> T:
    """Take one lock: check, queue, prepare the transaction, expire, send, record, report.

    :raises DocLockError: it names the document, the lock and the database.  After a failed lock
        the transaction that this call has opened is rolled back; another refuses all that follows.
    """
    context = target.context
    if context.transaction.condition is not Condition.OPEN:
        context.transaction.refuse()
    if context.connections.by_engine:  # mostly this is the first lock of a transaction
        _check_transaction(context, target.session)
    session, call, outer = target.session, None, context.calls.current
    autoflush = session.autoflush
    try:
        if target.is_held():
            _check_held_place(context, target)
            return target.read_held()
        if outer is not None and not target.request.as_is:
            _refuse_inner_call(outer)
        target.check()
        call = _begin_call(context, target)
        take: Take = _take
        for around_take in context.parts.around_take:
            take = around_take(take)
        result: T = take(call, target.request, target)
        context.calls.current = outer
    except BaseException as error:
        call = call or context.calls.current
        if call is not None and call is not outer:
            _end_failed(target, call, error)
        _complete(error, target)
        raise
    finally:
        # Once more, for an interruption at the line that does it.
        context.calls.current, session.autoflush = outer, autoflush
    _end_granted(context, call)
    return result


def _check_transaction(context: LockContext, session: Session) -> None:
    """See what has become of the locks of the transaction.

    :raises PendingRollbackError: nothing can be done in it before a rollback.
    """
    if not session.is_active:
        session.connection()
    context.end_if_over()
    context.transaction.check_locks()


def _complete(error: BaseException, target: LockTarget[Any]) -> None:
    """Put the document, the lock and the database into an error of ours."""
    if not isinstance(error, DocLockError):
        return
    request = target.request
    database = database_name(target.session, request.bind_arguments)
    add_document(error, request.entity, request.ident, request.lock, database)
    if isinstance(error, LockOrderViolation):  # the one misuse that shows under load alone
        target.context.instrumentation.report_order_violation(error)


def _refuse_inner_call(call: LockCall) -> None:
    """Refuse a lock that a listener takes within the call for another.

    :raises LockMisuse: this session is taking that lock, and has called what calls us.
    """
    if call.request.as_is:
        return
    raise LockMisuse(
        f"the session is taking the lock of {call.request.document}, and this call comes out of "
        "it, from a listener for load, refresh or do_orm_execute; take this lock when that call "
        "has returned"
    )


def _take(call: LockCall, request: LockRequest, target: LockTarget[Any]) -> Any:
    """Take the lock: prepare the transaction, expire what is loaded, send, record."""
    context, session = target.context, target.session
    call.met = None
    bind, strategy = _database_of(request, target)
    connection, plan = target.prepare(bind, strategy, request)
    _check_place(context, target, connection.connection)
    _note_database(context, target, request, bind, connection)
    if session.identity_map or context.loaded.added:
        target.expire()
    # Not by "no_autoflush", which costs three times as much; and not by the execution option,
    # which counts neither for Core nor for what loader options send.
    autoflush = session.autoflush
    session.autoflush = autoflush and request.as_is
    try:
        if _is_sent_in_blocks(request, target):
            found = _send_in_blocks(connection, plan, request, target)
        else:
            found = target.send(connection, plan, request)
        if call.met is not None:  # a listener has gone on in spite of it
            raise call.met
        if target.lasts:
            connection.note_lock(strategy)
        return target.record(found, request)
    finally:
        session.autoflush = autoflush


def _check_held_place(context: LockContext, target: LockTarget[Any]) -> None:
    """Check that what is asked for is the row that is held, and no other of the same key.

    :raises LockMisuse: it is in another database, or another schema.
    """
    bind = target.session.get_bind(**target.request.bind_arguments)
    found = context.connections.by_engine.get(bind.engine)
    _check_place(context, target, bind if found is None else found.connection)


def _check_place(context: LockContext, target: LockTarget[Any], bind: Engine | Connection) -> None:
    roots = target.roots()
    if roots:
        place = place_of(bind, *target.options)
        for root in roots:
            context.ledger.check_place(root.class_, place)
            if context.binds:
                _check_parts(target.session, root, place)


def _check_parts(session: Session, root: Mapper[Any], place: RowPlace) -> None:
    """:raises LockNotSupported: parts are in another database, which commits by itself."""
    for part in parts_of(root):
        try:
            bind = session.get_bind(part.detail)
        except UnboundExecutionError:
            continue  # the session cannot read such parts either
        if bind.engine is not place.engine and bind.engine.pool is not place.engine.pool:
            raise LockNotSupported(
                f"{part.detail.class_.__name__} is in {place_of(bind)}, and {root.class_.__name__} in "
                f"{place}: the lock of a header cannot protect parts that another database commits. Bind "
                "both classes to one engine, or leave the part out of @document(parts=...)"
            )


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
    strategy = strategies.get(bind.dialect) or target.context.opener.learn(bind)
    if strategy.compatible is not None:
        strategy.compatible.check(request.lock, request.seconds, named=request.named)
    if strategy.cluster is not None and is_row_lock(request.lock):
        strategy.cluster.warn_of_lock(strategy.findings, named=request.named)
    return bind, strategy


def _note_database(
    context: LockContext,
    target: LockTarget[Any],
    request: LockRequest,
    bind: Engine | Connection,
    connection: TransactionConnection,
) -> None:
    """Follow a Connection that the program has lent, and tell the parts of the database."""
    if isinstance(bind, Connection):
        watch(context, connection)
    for bound in context.parts.bound:
        bound(request, target.roots(), bind)


def _is_sent_in_blocks(request: LockRequest, target: LockTarget[Any]) -> bool:
    """Return whether something stands around the statements; around most locks nothing does."""
    limits = request.seconds is not None or not may_queue(request.lock)
    if limits and not target.limits_itself:
        return True
    return bool(target.context.parts.around_limit or execute_listeners(target.session))


def _send_in_blocks(
    connection: TransactionConnection, plan: LockPlan, request: LockRequest, target: LockTarget[Any]
) -> Any:
    """Send the statements: their wait limited, and what listeners make of them checked."""
    checking: AbstractContextManager[None] = nullcontext()
    if execute_listeners(target.session) and request.mapper and not request.as_is:
        row_lock = is_row_lock(connection.row_lock(plan))
        checking = checked_listeners(target.context, target.expire, row_lock=row_lock)
    limit: Limit = (lambda *_: nullcontext()) if target.limits_itself else _limit
    for around_limit in target.context.parts.around_limit:
        limit = around_limit(limit)
    with checking, limit(connection, plan, request) as limited:
        return target.send(connection, plan, limited or request)


def _limit(
    connection: TransactionConnection, plan: LockPlan, request: LockRequest
) -> AbstractContextManager[None]:
    """Limit the wait as the request says."""
    waits, few_rows = plan.strategy.waits, is_of_few_rows(request)
    return waits.limited(connection.connection, request.lock, request.seconds, few_rows=few_rows)


def is_of_few_rows(request: LockRequest) -> bool:
    """Return whether nothing but waits takes time: a few rows, found by their keys."""
    return 1 <= len(request.keys) <= _FEW_ROWS


def _begin_call(context: LockContext, target: LockTarget[Any]) -> LockCall:
    """Begin a call: report it, and note that it is under way."""
    request, opens = target.request, not target.session.in_transaction()
    call = LockCall(target, request, context.opener.now(), opens, context.calls.current)
    if (
        "before_lock" in listened
        and (request.entity is not None or request.named)  # not rows of tables
        and context.instrumentation.dispatch.before_lock
    ):
        call.requested = context.instrumentation.report_requested(
            RequestedLock(request.entity, request.ident, request.lock, request.seconds)
        )
    context.calls.current = call
    return call


def _end_granted(context: LockContext, call: LockCall) -> None:
    """End a call, which is not the current one any more: the lock was granted, and is recorded.

    :raises UnsavedChanges: some of its rows have pending changes that collide.
    """
    waited = context.opener.now() - call.started
    # Nobody is told of most locks, which is found out here without a call.
    if (
        call.requested is not None
        or "lock_acquired" in listened
        or context.parts.granted
        or waited >= instrumentation.CONTENDED
        or _log.isEnabledFor(logging.DEBUG)
    ):
        _report_granted(context, call, waited)
    if call.target.unsaved is not None:
        raise call.target.unsaved


def _report_granted(context: LockContext, call: LockCall, waited: float) -> None:
    new, lock = tuple(call.new), call.request.lock
    try:
        for granted in context.parts.granted:
            granted(new, lock)
        context.instrumentation.report_granted(new, lock, waited)
        _report_end(context, call, new, waited, call.target.unsaved)
    except BaseException as error:  # a listener's, as an error of the call
        if call.opens:
            context.roll_back_quietly()
        _report_end(context, call, new, waited, error)
        raise


def _end_failed(target: LockTarget[Any], call: LockCall, error: BaseException) -> None:
    """End a call: undo what it has done, and report its error."""
    context = target.context
    waited = context.opener.now() - call.started
    context.calls.current = call.outer
    try:
        target.undo(call, error)
        _report_failed(context, call, error, waited)
    finally:
        _report_end(context, call, (), waited, error)


def _is_failure_of_lock(call: LockCall, error: BaseException) -> bool:
    """Return whether nobody knows any more what the transaction holds."""
    interrupted = not isinstance(error, Exception)
    return interrupted or isinstance(error, DBAPIError) or call.met is not None


def _report_failed(
    context: LockContext, call: LockCall, error: BaseException, waited: float
) -> None:
    if isinstance(error, LockFailed):
        error.waited = waited
        for failed in context.parts.failed:
            failed(error, call)
        context.instrumentation.report_failed(error, waited, call.request.seconds)


def _report_end(
    context: LockContext,
    call: LockCall,
    granted: Sequence[DocumentKey | LockedName],
    waited: float,
    error: BaseException | None,
) -> None:
    """Report the end to the listeners of ``after_lock``, once."""
    requested, call.requested = call.requested, None
    if requested is not None:
        context.instrumentation.report_ended(requested, granted, waited, error)
