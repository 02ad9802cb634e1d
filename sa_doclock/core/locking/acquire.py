"""acquire(): the one sequence that takes every lock, and returns its result to the program.

By key, by many keys, by a select, by name, for a claim, or by a statement of the program.  The
differences between the kinds are in their :class:`LockTarget`; features add theirs as the session's
parts.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, UnboundExecutionError
from sqlalchemy.orm import Mapper, Session

from ...dialects import check_features, strategies, strategy_for, translated_table, warn_of_lock
from ...dialects.base import LockStrategy
from ...errors import DocLockError, LockFailed, LockMisuse, LockNotSupported, LockOrderViolation
from ...events import RequestedLock, listened
from ...keys import DocumentKey, LockedName
from ...options import is_row_lock, may_queue
from ...sqlalchemy_internals import execute_listeners
from .. import instrumentation
from ..documents import parts_of, root_of
from ..ledger import RowPlace, place_of
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
    binds_of,
    database_name,
    make_plan,
    open_for_lock,
    watch,
)
from .execute_listeners import checked_listeners
from .wait_limit import WaitLimit

T = TypeVar("T")

_log = logging.getLogger("sa_doclock")


class Found(NamedTuple):
    """The answer to the statements of a lock.

    :ivar rows: the rows that the statements read, in the form of each kind of target.
    :ivar keys: of locked rows, if the rows do not contain them.
    :ivar lasts: False if no lock outlives the statements.
    """

    rows: Any
    keys: Iterable[Any] = ()
    lasts: bool = True


class LockTarget(ABC, Generic[T]):
    """The rows, or the name, that one call locks.

    The methods are in the order in which :func:`acquire` calls them.  A request is the
    current try: for documents not held yet, with its own lock and limit.

    :ivar request: as the caller made it.
    :ivar roots: of the documents that it locks.
    :ivar options: the execution options of its statements, in addition to the connection's.
    """

    options: Sequence[Mapping[str, Any]] = ()

    def __init__(self, context: LockContext, request: LockRequest) -> None:
        self.context = context
        self.session = context.session()
        for route in context.parts.route:
            request = route(request)
        self.request = request
        self.mapper: Any = request.mapper
        self.roots: Collection[Mapper[Any]] = ()
        if request.mapper is not None:
            self.roots = (root_of(request.mapper),)

    def not_held(self) -> LockRequest | None:
        """Return the request for documents not held as strongly yet; None: all of them are.

        :raises LockUpgradeRefused: one is held by a read lock.
        """
        return self.request

    def read_held(self) -> T:
        """Return the result if everything is held already."""
        raise TypeError(f"{type(self).__name__} does not support read_held()")

    def check(self, request: LockRequest) -> None:
        """Refuse the call, if possible before anything is sent.

        :raises DocLockError: this program, statement or class cannot take the lock.
        """

    def prepare(
        self, bind: Engine | Connection, strategy: LockStrategy, request: LockRequest
    ) -> tuple[TransactionConnection, LockPlan]:
        """Return the connection for the lock, its transaction prepared, and the plan.

        :raises LockNotSupported: this database or connection cannot give the lock.
        :raises WrongIsolation: the transaction is open already, at an unsuitable level.
        """
        plan = strategy.findings.get((LockPlan, self.mapper, request.lock, False)) or make_plan(
            self.mapper, request.lock, strategy
        )
        connection = open_for_lock(self.context, bind, plan, request.seconds)
        if plan.table is not None and self.options:
            plan = plan._replace(table=translated_table(plan.table, *self.options))
        return connection, plan

    def expire(self, request: LockRequest) -> None:
        """Expire its loaded objects, so that no value is older than the lock.

        Called just before :meth:`send`, and again after listeners of the program.

        :raises UnsavedChanges: listeners changed it before the lock.
        """

    def before_flush(self) -> None:
        """Prepare the session's objects for the flush of a listener during the call."""

    @abstractmethod
    def send(
        self, connection: TransactionConnection, plan: LockPlan, request: LockRequest
    ) -> Found:
        """Send the statements that lock, and return their rows."""

    @abstractmethod
    def record(self, found: Found, request: LockRequest) -> T:
        """Record the granted locks in the ledger, and return the result of the call."""

    def leave_out(self, documents: Collection[DocumentKey], most: int) -> bool:
        """Exclude these documents when it is sent and recorded again.

        :param most: the largest number of parameters for their keys.
        :returns: False if it cannot.
        """
        return False

    def undo(self, call: LockCall, error: BaseException) -> None:
        """Undo the effects of the call, which ends with this error.

        A transaction that it opened is rolled back; another refuses everything that follows.
        """
        if call.opens:
            self.context.roll_back_quietly()
        elif (
            isinstance(error, DBAPIError)
            or not isinstance(error, Exception)  # an interruption
            or call.met is not None
        ):  # the locks of the transaction are unknown now
            self.context.transaction.refuse_from_now_on(error)


def acquire(target: LockTarget[T]) -> T:
    """Take one lock: check, queue, prepare the transaction, expire, send, record, report.

    :raises DocLockError: it names the document, the lock and the database.  After a failed lock, a
        transaction that this call opened is rolled back; another refuses everything that follows.
    """
    context = target.context
    if context.transaction.condition is not Condition.OPEN:
        context.transaction.refuse()
    session, call, outer = target.session, None, context.calls.current
    if context.connections.by_engine:  # usually this is the first lock of a transaction
        _check_transaction(context, session)
    autoflush = session.autoflush
    try:
        request = target.not_held()
        if request is None:
            return _read_held(context, target)
        if outer is not None:
            _refuse_inner_call(outer, request)
        target.check(request)
        opens = not session.in_transaction()
        requested = _report_begin(target, request) if "before_lock" in listened else None
        call = context.calls.current = LockCall(
            target, request, context.calls, requested, opens=opens
        )
        take: Take = _take
        for around_take in context.parts.around_take:
            take = around_take(take)
        result: T = take(call, request, target)
        context.calls.current = outer
    except BaseException as error:
        _fail(target, call or context.calls.current, outer, error)
        raise
    finally:
        # Again, in case an interruption hit the line above.
        context.calls.current, session.autoflush = outer, autoflush
    _end_granted(context, call)
    return result


def _check_transaction(context: LockContext, session: Session) -> None:
    """Check that the transaction still has its locks.

    :raises PendingRollbackError: it must be rolled back first.
    """
    if not session.is_active:
        session.connection()
    if session.get_transaction() is not context.connections.root:
        context.end_if_over()
    context.transaction.check_locks()


def _refuse_inner_call(call: LockCall, inner: LockRequest) -> None:
    """Refuse a lock that a listener takes within another lock call.

    :raises LockMisuse: a listener calls while this session takes a lock.
    """
    if call.request.as_is or inner.as_is:
        return
    raise LockMisuse(
        "a load, refresh or do_orm_execute listener tried to take a lock while the session was still "
        f"locking {call.request.document}; take it after that call returns"
    )


def _take(call: LockCall, request: LockRequest, target: LockTarget[Any]) -> Any:
    """Take the lock: prepare the transaction, expire loaded objects, send, record."""
    context, session = target.context, target.session
    call.met = None
    bind, strategy = _database_of(request, target)
    connection, plan = target.prepare(bind, strategy, request)
    _note_database(context, target, request, bind, connection)
    if session.identity_map or context.added:
        target.expire(request)
    # "no_autoflush" costs three times as much; the option affects neither Core nor loader options.
    autoflush = session.autoflush
    session.autoflush = autoflush and request.as_is
    try:
        # Most locks have nothing around them.  Checked inline to save a call.
        if (
            (request.seconds is None and may_queue(request.lock))
            and not context.parts.around_limit
            and not execute_listeners(session)
        ):
            found = target.send(connection, plan, request)
        else:
            checking, limiting = _blocks(target, connection, plan, request)
            with checking, limiting as limited:
                found = target.send(connection, plan, limited or request)
        if call.met is not None:  # a listener has swallowed it
            raise call.met
        if found.lasts:
            connection.note_lock(strategy)
        return target.record(found, request)
    finally:
        session.autoflush = autoflush


def _read_held(context: LockContext, target: LockTarget[T]) -> T:
    """Return documents that are locked already.

    :raises LockMisuse: a locked document has the same key in another database or schema.
    """
    bind = target.session.get_bind(**target.request.bind_arguments)
    found = context.connections.by_engine.get(bind.engine)
    for root in target.roots:
        at = bind if found is None else found.connection
        context.ledger.check_place(root, at, *target.options)
    return target.read_held()


def _note_database(
    context: LockContext,
    target: LockTarget[Any],
    request: LockRequest,
    bind: Engine | Connection,
    connection: TransactionConnection,
) -> None:
    """Record where the rows are, watch a lent Connection, and tell the parts."""
    for root in target.roots:
        context.ledger.check_place(root, connection.connection, *target.options)
        if binds_of(target.session):
            _check_parts(target.session, root, place_of(connection.connection, *target.options))
    if isinstance(bind, Connection):
        watch(context, connection)
    for bound in context.parts.bound:
        bound(request, target.roots, bind)


def _check_parts(session: Session, root: Mapper[Any], place: RowPlace) -> None:
    """:raises LockNotSupported: a part is in another database, which commits separately."""
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

    :raises LockNotSupported: a compatible product cannot give the lock.
    """
    session = target.session
    if not session.is_active:
        session.connection()  # raises PendingRollbackError, as after a failed flush
    bind = session.get_bind(**request.bind_arguments)
    strategy = strategies.get(bind.dialect) or _learn(target.context, bind)
    if strategy.compatible is not None:
        check_features(strategy.compatible, request.lock, request.seconds, named=request.named)
    if strategy.cluster is not None and is_row_lock(request.lock):
        warn_of_lock(strategy.cluster, strategy.findings, named=request.named)
    return bind, strategy


def _learn(context: LockContext, bind: Engine | Connection) -> LockStrategy:
    started = time.monotonic()
    strategy = strategy_for(bind)
    context.calls.connecting += time.monotonic() - started
    return strategy


def _blocks(
    target: LockTarget[Any], connection: TransactionConnection, plan: LockPlan, request: LockRequest
) -> tuple[AbstractContextManager[None], AbstractContextManager[LockRequest | None]]:
    """Return the blocks around the statements: one checks listeners' changes, one limits the wait."""
    checking: AbstractContextManager[None] = nullcontext()
    if execute_listeners(target.session) and request.mapper and not request.as_is:
        row_lock = is_row_lock(connection.row_lock(plan))
        expire = partial(target.expire, request)
        checking = checked_listeners(target.context, expire, row_lock=row_lock)
    limit: Limit = WaitLimit.around
    for around_limit in target.context.parts.around_limit:
        limit = around_limit(limit)
    return checking, limit(connection, plan, request)


def _report_begin(target: LockTarget[Any], request: LockRequest) -> RequestedLock | None:
    """Report that a call begins, except for rows of tables; return the report if anyone listens."""
    listeners = target.session.dispatch.before_lock
    if (request.entity is None and not request.named) or not listeners:
        return None
    entity, ident, lock, seconds, *_ = request
    requested = RequestedLock(entity, ident, lock, seconds, request.bind_arguments)
    listeners(target.session, requested)
    return requested


def _end_granted(context: LockContext, call: LockCall) -> None:
    """End a call, which is no longer current, after its lock was granted and recorded.

    :raises UnsavedChanges: rows have pending changes that collide.
    """
    waited = time.monotonic() - context.calls.connecting - call.started
    # Most locks have no listener.  Checked inline to save a call.
    if (
        call.requested is not None
        or "lock_acquired" in listened
        or context.parts.settled
        or waited >= instrumentation.CONTENDED
        or _log.isEnabledFor(logging.DEBUG)
    ):
        _report_granted(context, call, waited)
    if call.unsaved is not None:
        raise call.unsaved


def _report_granted(context: LockContext, call: LockCall, waited: float) -> None:
    new, lock = tuple(call.new), call.request.lock
    try:
        for settled in context.parts.settled:
            settled(call, None)
        instrumentation.report_granted(context.session(), new, lock, waited)
        _report_end(context, call, new, waited, call.unsaved)
    except BaseException as error:  # a listener's error counts as the call's
        if call.opens:
            context.roll_back_quietly()
        _report_end(context, call, new, waited, error)
        raise


def _fail(
    target: LockTarget[Any], call: LockCall | None, outer: LockCall | None, error: BaseException
) -> None:
    """End the call that this error has stopped, report it, and name the document in our own error.

    :param call: None, or the outer call, if the error was raised before this call began.
    """
    context, request = target.context, target.request
    if call is not None and call is not outer:
        waited = context.calls.now() - call.started
        context.calls.current = outer
        try:
            target.undo(call, error)
            if isinstance(error, LockFailed):
                error.waited = waited
                for settled in context.parts.settled:
                    settled(call, error)
                instrumentation.report_failed(target.session, error, waited, call.request.seconds)
        finally:
            _report_end(context, call, (), waited, error)
    if isinstance(error, DocLockError):
        database = database_name(target.session, request.bind_arguments)
        add_document(error, request.entity, request.ident, request.lock, database)
    if isinstance(error, LockOrderViolation):  # the only misuse that appears only under load
        instrumentation.report_order_violation(error)


def _report_end(
    context: LockContext,
    call: LockCall,
    granted: Sequence[DocumentKey | LockedName],
    waited: float,
    error: BaseException | None,
) -> None:
    requested, call.requested = call.requested, None
    if requested is not None:
        session = context.session()
        session.dispatch.after_lock(session, requested, granted, waited, error)
