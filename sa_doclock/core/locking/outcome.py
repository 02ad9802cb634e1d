"""The begin and the end of a call for a lock: what is reported of it, and undone after a failure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from sqlalchemy.exc import DBAPIError

from ...errors import DocLockError, LockFailed
from ...events import RequestedLock, listened
from .. import instrumentation
from ..lock_info import DocumentKey, LockedName
from ..transaction import LockCall, LockContext, LockRequest

Undo = Callable[[LockCall, BaseException], None]

_log = logging.getLogger("sa_doclock")


def begin_call(context: LockContext, request: LockRequest) -> LockCall:
    """Begin a call: report it, and note that it is under way."""
    opens = not context.session().in_transaction()
    call = LockCall(request, context.connections.now(), opens, context.calls.current)
    if "before_lock" in listened and _is_reported(context, request):
        call.requested = context.instrumentation.report_requested(
            RequestedLock(request.entity, request.ident, request.lock, request.seconds)
        )
    context.calls.begin(call)
    return call


def _is_reported(context: LockContext, request: LockRequest) -> bool:
    """Return whether listeners are told of the call; they are not told of rows of tables."""
    of_document = request.entity is not None or request.named
    return of_document and bool(context.instrumentation.dispatch.before_lock)


def end_granted(context: LockContext, call: LockCall) -> None:
    """End a call: the lock was granted, and is recorded.

    :raises UnsavedChanges: some of its rows have pending changes that collide.
    """
    context.calls.end(call)
    waited = context.connections.now() - call.started
    # Nobody is told of most locks, which is found out here without a call.
    if (
        call.requested is not None
        or "lock_acquired" in listened
        or context.parts.granted
        or waited >= instrumentation.CONTENDED
        or _log.isEnabledFor(logging.DEBUG)
    ):
        _report_granted(context, call, waited)
    if call.unsaved is not None:
        raise call.unsaved


def _report_granted(context: LockContext, call: LockCall, waited: float) -> None:
    new, lock = tuple(call.new), call.request.lock
    try:
        for granted in context.parts.granted:
            granted(new, lock)
        context.instrumentation.report_granted(new, lock, waited)
        _report_end(context, call, new, waited, call.unsaved)
    except BaseException as error:  # a listener's, as an error of the call
        if call.opens:
            context.roll_back_quietly()
        _report_end(context, call, new, waited, error)
        raise


def end_failed(context: LockContext, call: LockCall, error: BaseException, undo: Undo) -> None:
    """End a call: undo what it has done, and report its error."""
    waited = context.connections.now() - call.started
    context.calls.end(call)
    try:
        undo(call, error)
        _report_failed(context, call, error, waited)
    finally:
        _report_end(context, call, (), waited, error)


def roll_back_or_refuse(context: LockContext, call: LockCall, error: BaseException) -> None:
    """Roll back the transaction that the call has opened, or have another refuse all that follows."""
    if call.opens:
        context.roll_back_quietly()
    elif _is_failure_of_lock(call, error):
        context.failure.refuse_from_now_on(error)


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


def _is_failure_of_lock(call: LockCall, error: BaseException) -> bool:
    """Return whether nobody knows any more what the transaction holds."""
    if isinstance(error, DBAPIError) or not isinstance(error, Exception):
        return True
    # After another try, which was granted, an error of ours is a misuse like any other.
    return call.met is not None and (call.met is error or not isinstance(error, DocLockError))
