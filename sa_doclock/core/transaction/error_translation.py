"""A driver's error becomes a typed one of ours, where its number says that a lock has failed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from traceback import walk_tb
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.engine import ExceptionContext

from ...dialects import find_strategy
from ...dialects.base import LockStrategy, NativeCode
from ...errors import DocLockError, LockFailed, LockLost, LockNotAvailable
from ...options import LockOptions
from ..lock_info import public_key
from ..lock_request import LockCall, add_document, reason
from .context import LockContext
from .foreign import runs_built
from .locks_lost_errors import locks_lost_with_connection


def translate_error(
    states: Sequence[LockContext], context: ExceptionContext
) -> BaseException | None:
    """Return the error to raise in place of the driver's; None: that one.

    :param states: of the sessions that the connection belongs to.
    """
    connection = context.connection
    assert connection is not None
    if context.sqlalchemy_exception is None:
        return _reason_of_noise(states, connection, context) or _interruption_of(context)
    # A Connection that was lent, and is used by its lender now, is in no state's transaction.
    states = [one for one in states if connection in one.connections.all()]
    return _translate(states, connection, context) if states else None


def _interruption_of(context: ExceptionContext) -> BaseException | None:
    """Have the connection given up after Ctrl-C or a cancellation, as SQLAlchemy does where it can.

    The driver may meet it at a place where it reckons with none.  What comes out then is an error
    of its own, as psycopg's AssertionError out of its pipeline, and where it stands with the
    server nobody knows any more.

    :returns: the interruption, to be raised.
    """
    assert context.connection is not None
    error: BaseException | None = context.original_exception
    if not isinstance(error, Exception):
        strategy = find_strategy(context.connection)
        if strategy is not None and not context.connection.dialect.is_async:
            with suppress(Exception):
                cursor = getattr(context.execution_context, "cursor", None)
                strategy.lifecycle.interrupted(context.connection, cursor)
        return None
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    while isinstance(error, Exception):
        error = error.__context__
    if error is None or error.__traceback__ is None:
        return None
    if error.__traceback__.tb_frame not in frames:
        return None  # the caller's, who handles it by this statement
    context.is_disconnect = True
    return error


def _translate(
    states: Sequence[LockContext], connection: Connection, context: ExceptionContext
) -> BaseException | None:
    """Return our own error, or None where the driver's is to be raised.

    The words are those of the call that is under way; the consequences are for all sessions whose
    transaction it was.
    """
    strategy = find_strategy(connection)
    code = None if strategy is None else strategy.errors.native_code(context.original_exception)
    lost = _note_locks_lost(states, strategy, code, context)
    if strategy is None or (context.is_disconnect and code not in strategy.errors.ends_connection):
        return lost
    state = next((one for one in states if one.calls.current is not None), states[-1])
    noise = _reason_of_noise([state], connection, context)
    if noise is not None:
        return noise
    if context.statement is None:  # BEGIN, COMMIT, ROLLBACK
        strategy.lifecycle.commit_failed(connection)
    return _translate_answer(states, state, strategy, code, context)


def _translate_answer(
    states: Sequence[LockContext],
    state: LockContext,
    strategy: LockStrategy,
    code: NativeCode | None,
    context: ExceptionContext,
) -> DocLockError | None:
    """Return our own error of what the server has answered, and note what it has ended.

    :param state: the one in whose words it is told.
    """
    error = _typed_error(state, strategy, code, context)
    if error is None:
        _add_advice(strategy, code, context)
    ended = _has_ended(states, strategy, code, context)
    for one in states:
        _note(one, strategy, code, context, error, ended=ended)
    if state.calls.current is None and isinstance(error, LockFailed):
        state.instrumentation.report_failed(error, None)
    return error


def _add_advice(strategy: LockStrategy, code: NativeCode | None, context: ExceptionContext) -> None:
    """Add to the driver's error what people should know of it."""
    advice = None if code is None else strategy.errors.advice.get(code)
    if advice is not None and context.sqlalchemy_exception is not None:
        context.sqlalchemy_exception.add_detail(advice)


def _note_locks_lost(
    states: Sequence[LockContext],
    strategy: LockStrategy | None,
    code: NativeCode | None,
    context: ExceptionContext,
) -> LockLost | None:
    """Have the states forget their locks, where the connection is lost; return the error of it."""
    if strategy is not None and code in strategy.errors.breaks_connection:
        context.is_disconnect = True
    if not context.is_disconnect:
        return None
    lost = None
    for one in states:
        error = (
            None if strategy is None else locks_lost_with_connection(one, strategy, code, context)
        )
        one.transaction.note_locks_lost()
        if error is not None and one.calls.current is None:
            one.instrumentation.report_failed(error, None)
        lost = lost or error
    return lost


def _has_ended(
    states: Sequence[LockContext],
    strategy: LockStrategy,
    code: NativeCode | None,
    context: ExceptionContext,
) -> bool:
    """Return whether the error has ended the transaction: by its number, or the driver knows."""
    if code in strategy.errors.rolls_back_transaction:
        return True
    connection, statement = context.connection, context.statement
    assert connection is not None
    if statement is None or not any(one.connections.has_begun(connection) for one in states):
        return False
    if runs_built(context.execution_context):
        return strategy.status.in_transaction(connection) is False
    with suppress(Exception):  # of a question to the server: nothing is known then
        return strategy.status.in_transaction_after_error(connection, statement, code) is False
    return False


def _reason_of_noise(
    states: Sequence[LockContext], connection: Connection, context: ExceptionContext
) -> BaseException | None:
    """Return the error that explains why there was nothing to roll back, if it is that.

    What pymssql raises then, where the login's language is not English, is none of its own errors.
    """
    strategy = find_strategy(connection)
    if strategy is None or not strategy.errors.rollback_noise:
        return None
    if (
        strategy.errors.native_code(context.original_exception)
        not in strategy.errors.rollback_noise
    ):
        return None
    failures = [one.failure for one in states]
    return next((one.cause for one in failures if one.is_rolled_back()), None)


def _typed_error(
    state: LockContext, strategy: LockStrategy, code: NativeCode | None, context: Any
) -> DocLockError | None:
    call = state.calls.current
    request = None if call is None else call.request
    kind, why = _meaning(strategy, code, context, state)
    if kind is None:
        return None
    if (
        call is not None
        and code in strategy.errors.server_limits
        and not call.is_over(state.connections.now())
    ):
        request = call.request._replace(seconds=None)  # the server's own limit has ended the wait
    error = _build_error(kind, why or reason(kind, request), context)
    if request is not None:
        add_document(error, request.entity, request.ident, request.lock, strategy.name)
    else:
        add_document(error, *_document_without_call(state, error), strategy.name)
    return error


def _build_error(kind: type[DocLockError], message: str, context: ExceptionContext) -> DocLockError:
    """Return the error of this kind, with what the driver has raised."""
    if not issubclass(kind, LockFailed):
        return kind(message)
    return kind(
        message,
        statement=context.statement,
        params=context.parameters,
        orig=context.original_exception,
        hide_parameters=context.engine is not None and context.engine.hide_parameters,
    )


def _meaning(
    strategy: LockStrategy,
    code: NativeCode | None,
    context: Any,
    state: LockContext,
) -> tuple[type[DocLockError] | None, str]:
    """Return the kind of error, and the sentence that says why, where there is one."""
    kind, call = None, state.calls.current
    if code is not None:
        kind = strategy.errors.failure(code, context.connection, locking=call is not None)
    if kind is not None or call is None or call.request.adopted:
        return kind, ""
    return _refusal(strategy, code, context, call, state.connections.now())


def _refusal(
    strategy: LockStrategy, code: NativeCode | None, context: Any, call: LockCall, now: float
) -> tuple[type[DocLockError] | None, str]:
    """Return the kind of error, and the sentence, of what is a refusal in a call for a lock alone."""
    by_key = call.request.by_key
    refused = strategy.errors.refusal(code, context.original_exception, by_key=by_key)
    if refused is not None:
        # The limit of a whole statement is ours, or the user's: the time that has gone by tells.
        is_ours = refused[0] is LockNotAvailable and call.is_over(now)
        return (LockNotAvailable, "") if is_ours else refused
    if by_key and code in strategy.errors.statement_limits:
        return LockNotAvailable, ""
    return None, ""


def _document_without_call(
    state: LockContext, error: DocLockError
) -> tuple[type[Any] | None, Any, LockOptions | None]:
    """Return what a flush or commit that was undone is about, where one document is held."""
    if isinstance(error, LockNotAvailable) and error.statement is not None:
        return None, None, None  # of a row other than those held
    if len(state.ledger.held) != 1:
        return None, None, None
    ((entity, identity),) = state.ledger.held
    return entity, public_key(identity), None


def _note(
    state: LockContext,
    strategy: LockStrategy,
    code: NativeCode | None,
    context: ExceptionContext,
    error: DocLockError | None,
    *,
    ended: bool,
) -> None:
    """Note in this state what the error has ended."""
    if code is not None and context.statement is not None:
        _note_abort(state, strategy, context, error)
    if ended:
        state.failure.note_server_rollback()
    elif strategy.errors.ends_unseen:
        _doubt(state, context, error)
    if state.calls.current is not None and _note_met(state.calls.current, context, error):
        return
    if ended or code in strategy.errors.requires_rollback:
        state.failure.refuse_from_now_on(_met(context, error))


def _note_met(call: LockCall, context: ExceptionContext, error: DocLockError | None) -> bool:
    """Note the error in its call; return whether the call refuses, when it has put its settings back."""
    if error is not None:
        assert context.connection is not None
        call.engine, call.met = context.connection.engine, error
    return not call.request.adopted


def _note_abort(
    state: LockContext,
    strategy: LockStrategy,
    context: ExceptionContext,
    error: DocLockError | None,
) -> None:
    """Note that the error has aborted the transaction, where no savepoint of the call undoes it."""
    undone = state.calls.current is not None and state.calls.current.undone_by_savepoint
    if strategy.errors.aborts_on_error and not (undone and isinstance(error, LockNotAvailable)):
        assert context.connection is not None
        state.transaction.note_abort(context.connection, error or context.original_exception)


def _doubt(state: LockContext, context: ExceptionContext, error: DocLockError | None) -> None:
    """Have the server asked later whether the error has ended a transaction with locks."""
    assert context.connection is not None
    connection = state.connections.find(context.connection)
    if connection is not None and connection.mark is not None:
        state.failure.doubt(connection, _met(context, error))


def _met(context: ExceptionContext, error: DocLockError | None) -> BaseException:
    """Return the error that comes out of the statement."""
    return error or context.sqlalchemy_exception or context.original_exception
