"""A driver's error becomes a typed one of ours, where its number says that a lock has failed."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, WeakKeyDictionary, WeakSet

from sqlalchemy import Connection, event
from sqlalchemy.engine import Dialect, ExceptionContext

from ..dialects import find_strategy
from ..dialects.base import LockStrategy, NativeCode
from ..errors import DocLockError, LockFailed, LockNotAvailable
from ..lock_info import public_key
from ..options import LockOptions
from .cancellation import interruption_of
from .messages import add_document, build_error, reason

if TYPE_CHECKING:
    from .request import LockRequest
    from .state import TransactionState

# SQLAlchemy tells of an error by its dialect, which all sessions of an engine share.  So what
# finds the sessions that a connection belongs to is global.  Several sessions may have been given
# one Connection: each keeps its own state.
states_by_connection: WeakKeyDictionary[Connection, tuple[ReferenceType[TransactionState], ...]]
states_by_connection = WeakKeyDictionary()
listened_dialects: WeakSet[Dialect] = WeakSet()
_first = Lock()


def listen_to_errors(dialect: Dialect) -> None:
    """Translate the errors of this engine's connections, as far as they belong to a session."""
    with _first:
        if dialect not in listened_dialects:
            event.listen(dialect, "handle_error", _on_error)
            listened_dialects.add(dialect)


def _on_error(context: ExceptionContext) -> BaseException | None:
    if context.connection is None:
        return None
    known = states_by_connection.get(context.connection, ())
    # A session that was collected, with its transaction open, may leave its state for a moment.
    states = [
        state for one in known if (state := one()) is not None and state.session() is not None
    ]
    if not states:
        return None
    if context.sqlalchemy_exception is None:
        return interruption_of(context)
    # A Connection that was lent, and is used by its lender now, is in no state's transaction.
    states = [one for one in states if context.connection in one.connections.all()]
    return _translate(states, context.connection, context) if states else None


def _translate(
    states: Sequence[TransactionState], connection: Connection, context: ExceptionContext
) -> BaseException | None:
    """Return our own error, or None where the driver's is to be raised.

    The words are those of the call that is under way; the consequences are for all sessions whose
    transaction it was.
    """
    state = next((one for one in states if one.call is not None), states[-1])
    strategy = find_strategy(connection)
    if context.is_disconnect:
        for one in states:
            one.lose_locks()
    if strategy is None:
        return None
    code = strategy.native_code(context.original_exception)
    if context.is_disconnect and code not in strategy.ends_connection:
        return None
    if code in strategy.rollback_noise and state.server_has_rolled_back():
        return state.failure.cause
    if context.statement is None:  # BEGIN, COMMIT, ROLLBACK
        strategy.commit_failed(connection)
    error = _typed_error(state, strategy, code, context)
    for one in states:
        _note(one, strategy, code, context, error)
    if state.call is None and isinstance(error, LockFailed):
        state.instrumentation.report_failed(error, None)
    return error


def _typed_error(
    state: TransactionState, strategy: LockStrategy, code: NativeCode | None, context: Any
) -> DocLockError | None:
    request = None if state.call is None else state.call.request
    kind, why = _meaning(strategy, code, context.original_exception, request)
    if kind is None:
        return None
    if request is not None and code in strategy.server_limits:
        request = request._replace(seconds=None)  # the server's own limit has ended the wait
    error = build_error(kind, why or reason(kind, request), context)
    if request is not None:
        add_document(error, request.entity, request.ident, request.lock, strategy.name)
    elif kind is LockNotAvailable and context.statement is not None:
        add_document(error, None, None, None, strategy.name)  # of a row other than those held
    else:
        add_document(error, *_only_document(state), strategy.name)
    return error


def _meaning(
    strategy: LockStrategy,
    code: NativeCode | None,
    orig: BaseException,
    request: LockRequest | None,
) -> tuple[type[DocLockError] | None, str]:
    """Return the kind of error, and the sentence that says why, where there is one."""
    kind = strategy.failures.get(code) if code is not None else None
    if kind is not None or request is None:
        return kind, ""
    refused = strategy.refusal(code, orig, by_key=request.by_key)
    if refused is not None:
        return refused
    if request.by_key and code in strategy.statement_limits:
        return LockNotAvailable, ""
    return None, ""


def _only_document(
    state: TransactionState,
) -> tuple[type[Any] | None, Any, LockOptions | None]:
    """Return what a flush or commit that was undone is about, where one document is held."""
    if len(state.ledger.held) != 1:
        return None, None, None
    ((entity, identity),) = state.ledger.held
    return entity, public_key(identity), None


def _note(
    state: TransactionState,
    strategy: LockStrategy,
    code: NativeCode | None,
    context: ExceptionContext,
    error: DocLockError | None,
) -> None:
    """Note in this state what the error has ended."""
    call = state.call
    if strategy.aborts_on_error and code is not None and context.statement is not None:
        undone = call is not None and call.undone_by_savepoint
        if not (undone and isinstance(error, LockNotAvailable)):
            state.failure.note_abort(error or context.original_exception)
    if error is None:
        return
    if code in strategy.rolls_back_transaction:
        state.failure.note_server_rollback()
    if call is not None:
        assert context.connection is not None
        call.engine, call.met = context.connection.engine, error
        return  # it is refused when the call has put back what it had set
    if code in strategy.requires_rollback:
        state.failure.refuse_from_now_on(error)
