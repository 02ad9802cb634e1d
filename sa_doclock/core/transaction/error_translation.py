"""Translates a driver's error into one of ours, if its code says that a lock failed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from traceback import walk_tb
from typing import Any, Final, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import ExceptionContext, TwoPhaseTransaction
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state

from ...dialects import find_strategy, product_of, raised_by_driver
from ...dialects.base import Ends, EveryError, Limit, LockStrategy, MetError, NativeCode
from ...errors import CommitUnknown, DocLockError, LockFailed, LockLost, LockNotAvailable
from ...interruptions import ErrorsIgnored
from ...keys import public_key
from ...options import LockOptions
from ..documents import root_of
from ..instrumentation import report_failed
from ..ledger import document_of
from ..lock_request import add_document, database_name, reason
from .connection_events import may_commit, runs_built
from .context import LockContext, state_of
from .lock_transaction import LockTransaction
from .transaction_connection import is_broken


class DriverError(NamedTuple):
    """An error of the driver, on a connection of a known database.

    :ivar code: its code, or None.
    """

    context: ExceptionContext
    connection: Connection
    strategy: LockStrategy
    code: NativeCode | None


def translate_error(
    states: Sequence[LockContext], context: ExceptionContext
) -> BaseException | None:
    """Return the error to raise instead of the driver's, or None.

    :param states: of the sessions of the connection.
    """
    connection = context.connection
    assert connection is not None
    # A lent Connection that its lender uses now is in no state's transaction.
    own = [candidate for candidate in states if connection in candidate.connections.all()]
    for state in own:
        if state.transaction.parent is not None:  # it belongs to the process that forked this one
            context.is_disconnect = False  # else SQLAlchemy closes the pool's other connections too
            state.transaction.parent.refuse()
    if context.sqlalchemy_exception is not None:
        return _translate(own, connection, context) if own else None
    strategy = find_strategy(connection)
    noise = _reason_of_noise(states, strategy, context)
    met = None if strategy is None else DriverError(context, connection, strategy, None)
    lost = None if met is None else _note_unwrapped(own, met)
    return noise or lost or _interruption_of(context)


def _note_unwrapped(
    states: Sequence[LockContext], met: DriverError
) -> LockLost | CommitUnknown | None:
    """Handle an error that the driver raises unwrapped: from its socket, or an unreadable answer."""
    error = met.context.original_exception
    # An error of SQLAlchemy or of ours may still have frames of the driver.
    if not isinstance(error, Exception) or isinstance(error, (SQLAlchemyError, DocLockError)):
        return None
    return _note_locks_lost(states, met)


def _interruption_of(context: ExceptionContext) -> BaseException | None:
    """Invalidate the connection after Ctrl-C or a cancellation, as SQLAlchemy does if it can.

    The driver may not expect it at this point and raise an error of its own, as psycopg's
    AssertionError in its pipeline.  The state of the connection is unknown then.

    :returns: the interruption, to be raised.
    """
    assert context.connection is not None
    error: BaseException | None = context.original_exception
    if not isinstance(error, Exception):
        strategy = find_strategy(context.connection)
        if strategy is not None and not context.connection.dialect.is_async:
            with ErrorsIgnored():
                cursor = getattr(context.execution_context, "cursor", None)
                strategy.lifecycle.commit_failed(context.connection, cursor)
        return None
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    while isinstance(error, Exception):
        error = error.__context__
    if error is None or error.__traceback__ is None:
        return None
    if error.__traceback__.tb_frame not in frames:
        return None  # the caller handles it by this statement
    context.is_disconnect = True
    return error


def _translate(
    states: Sequence[LockContext], connection: Connection, context: ExceptionContext
) -> BaseException | None:
    """Return our own error, or None to raise the driver's.

    The current lock call decides the text; every session of the transaction is affected.
    """
    strategy = find_strategy(connection)
    if strategy is None:
        return _note_lost(states, None, None, context) if context.is_disconnect else None
    code = strategy.errors.native_code(context.original_exception)
    met = DriverError(context, connection, strategy, code)
    lost = _note_locks_lost(states, met)
    if context.is_disconnect and strategy.errors[code].error is None:
        return lost
    # The state with a current call, or else the last.
    state = next(
        (candidate for candidate in states if candidate.calls.current is not None), states[-1]
    )
    noise = _reason_of_noise([state], strategy, context)
    if noise is not None:
        return noise
    if context.statement is None:  # BEGIN, COMMIT, ROLLBACK
        strategy.lifecycle.commit_failed(connection)
    return _translate_answer(states, state, met)


def _translate_answer(
    states: Sequence[LockContext], state: LockContext, met: DriverError
) -> DocLockError | None:
    """Return our own error for the server's answer, and record the end that it implies.

    :param state: its call, or its locks, name the document.
    """
    error = _typed_error(state, met) or _error_of_savepoint(state, met)
    advice, wrapped = met.strategy.errors[met.code].advice, met.context.sqlalchemy_exception
    if error is None and advice and wrapped is not None:
        wrapped.add_detail(advice)
    raised = error or wrapped or met.context.original_exception
    ended = _has_ended(states, met)
    for candidate in states:
        _note(candidate, met, error, raised, ended=ended)
    if state.calls.current is None and isinstance(error, LockFailed):
        report_failed(state.session(), error, None)
    return error


def _error_of_savepoint(state: LockContext, met: DriverError) -> LockLost | None:
    ends_savepoint = (met.context.statement or "").startswith(("ROLLBACK", "RELEASE"))
    return state.transaction.lost_error() if ends_savepoint else None


def _note_locks_lost(
    states: Sequence[LockContext], met: DriverError
) -> LockLost | CommitUnknown | None:
    context, connection, strategy, code = met
    if not (context.is_disconnect or is_broken(connection, strategy, context.original_exception)):
        return None
    context.is_disconnect = True
    lost = _note_lost(states, strategy, code, context)
    # An error of a signal handler is the program's: do not replace it.
    return lost if raised_by_driver(connection, context.original_exception) else None


def _note_lost(
    states: Sequence[LockContext],
    strategy: LockStrategy | None,
    code: NativeCode | None,
    context: ExceptionContext,
) -> LockLost | CommitUnknown | None:
    lost = None
    for candidate in states:
        error = lost_with_connection(candidate, strategy, code, context)
        candidate.transaction.note_locks_lost()
        if isinstance(error, LockFailed) and candidate.calls.current is None:
            report_failed(candidate.session(), error, None)
        lost = lost or error
    return lost


def _has_ended(states: Sequence[LockContext], met: DriverError) -> bool:
    """Return whether the error ended the transaction, by its code or as the driver reports."""
    context, connection, strategy, code = met
    if strategy.errors[code].ends is Ends.TRANSACTION:
        return True
    statement = context.statement
    ours = [candidate.connections.find(connection) for candidate in states]
    if statement is None or not any(own is not None and own.begun for own in ours):
        return False
    if runs_built(context.execution_context):
        return strategy.status.in_transaction(connection) is False
    with ErrorsIgnored():  # of a question to the server: the answer is unknown
        return strategy.status.has_open_transaction(connection) is False
    return False


def _reason_of_noise(
    states: Sequence[LockContext], strategy: LockStrategy | None, context: ExceptionContext
) -> BaseException | None:
    """Return the error that explains why there was nothing to roll back, if this error says so.

    After a COMMIT or ROLLBACK by text, that is the error that made the program roll back.

    If the login's language is not English, pymssql raises an unrelated error here.
    """
    if strategy is None:
        return None
    code = strategy.errors.native_code(context.original_exception)
    if strategy.errors[code].ends is not Ends.NOTHING_LEFT:
        return None
    reasons = (candidate.transaction.reason_of_rollback() for candidate in states)
    reason = next(filter(None, reasons), None)
    if reason is not None or not any(
        candidate.connections.foreign_statements for candidate in states
    ):
        return reason
    for candidate in states:
        candidate.transaction.had_nothing_to_roll_back = True
    # The error that was being handled when the driver raised this one.
    error = context.original_exception
    code, before = strategy.errors.native_code(error), error.__context__
    while before is not None and strategy.errors.native_code(before) == code:
        before = before.__context__  # the driver's error in another form
    return before


def _typed_error(state: LockContext, met: DriverError) -> DocLockError | None:
    call, strategy = state.calls.current, met.strategy
    request = None if call is None else call.request
    kind, why = _meaning(state, met)
    if kind is None:
        return None
    if (
        call is not None
        and strategy.errors[met.code].limit is Limit.LOCK
        and not call.is_over(state.calls.now())
    ):
        request = call.request._replace(seconds=None)  # the server's own limit ended the wait
    message = why or reason(kind, request)
    if issubclass(kind, LockFailed):
        error: DocLockError = failure_of(kind, message, met.context)
    else:
        error = kind(message)
    if request is not None:
        add_document(error, request.entity, request.ident, request.lock, strategy.name)
    else:
        add_document(error, *_document_without_call(state, error), strategy.name)
    return error


def _meaning(state: LockContext, met: DriverError) -> tuple[type[DocLockError] | None, str]:
    """Return the error's class, and a sentence with the reason, or ""."""
    call = state.calls.current
    by_key = call is not None and call.request.by_key
    error = MetError(
        met.code, met.context.original_exception, met.connection, call is not None, by_key
    )
    found = met.strategy.errors.meaning(error)
    if found.error is not None or call is None or call.request.as_is:
        return found.error, found.why
    # A limit for whole statements may be ours or the program's: the elapsed time decides.
    is_ours = found.in_lock is LockNotAvailable and call.is_over(state.calls.now())
    return found.in_lock, "" if is_ours else found.why


def _document_without_call(
    state: LockContext, error: DocLockError
) -> tuple[type[Any] | None, Any, LockOptions | None]:
    """Return the document of a failed flush or commit, if only one document is locked."""
    of_other_row = isinstance(error, LockNotAvailable) and error.statement is not None
    if of_other_row or len(state.ledger.held) != 1:
        return None, None, None
    ((entity, identity),) = state.ledger.held
    return entity, public_key(identity), None


def _note(
    state: LockContext,
    met: DriverError,
    error: DocLockError | None,
    raised: BaseException,
    *,
    ended: bool,
) -> None:
    """Record the end that the error implies in this state.

    :param raised: the error of the statement.
    """
    if met.context.statement is not None:
        found = state.connections.find(met.connection)
        if found is not None:
            found.expect_no_transaction()
        if met.code is not None:
            _note_abort(state, met, error)
    if ended:
        state.transaction.note_server_rollback()
        if isinstance(met.connection.get_transaction(), TwoPhaseTransaction):
            # XA END, which SQLAlchemy sends to roll back, fails now.
            met.context.is_disconnect, met.context.invalidate_pool_on_disconnect = True, False
    elif met.strategy.errors.every_error is EveryError.MAY_END:
        _doubt(state, met.connection, raised)
    call = state.calls.current
    if call is not None and error is not None:
        call.engine, call.met = met.connection.engine, error
    if ended or _needs_rollback(met):
        state.transaction.refuse_after(raised, call)


def _needs_rollback(met: DriverError) -> bool:
    errors = met.strategy.errors
    return errors.every_error is EveryError.ABORTS and errors[met.code].error is not None


def _note_abort(state: LockContext, met: DriverError, error: DocLockError | None) -> None:
    """Record that the error aborted the transaction, unless the call's savepoint undoes it."""
    undone = state.calls.current is not None and state.calls.current.undone_by_savepoint
    aborts = met.strategy.errors.every_error is EveryError.ABORTS
    if aborts and not (undone and isinstance(error, LockNotAvailable)):
        state.transaction.note_abort(met.connection, error or met.context.original_exception)


def _doubt(state: LockContext, connection: Connection, raised: BaseException) -> None:
    found = state.connections.find(connection)
    if found is not None and found.mark is not None:
        state.transaction.doubt(found, raised)


_COMMITS: Final = frozenset({"do_commit", "do_prepare_twophase", "do_commit_twophase"})
"""The methods of a dialect that send COMMIT; after PREPARE the server keeps the transaction."""

F = TypeVar("F", LockFailed, LockLost, CommitUnknown)


def lost_with_connection(
    state: LockContext,
    strategy: LockStrategy | None,
    code: NativeCode | None,
    context: ExceptionContext,
) -> LockLost | CommitUnknown | None:
    """Return the error of a statement that found the connection, and so its locks, lost.

    None if no lock was held there, and nothing was committed.
    """
    ended_before = strategy is not None and strategy.errors[code].ends is Ends.CONNECTION_BEFORE
    if _sends_commit(state, context):
        if _is_not_done(state):
            return _not_committed(state, context)
        if not ended_before or len(state.connections.all()) > 1:
            return _commit_unknown(state, context)
    if strategy is None or not _holds_on(state, context.connection):
        return None
    return _lost_with_locks(state, strategy, context, ended_before=ended_before)


def _lost_with_locks(
    state: LockContext, strategy: LockStrategy, context: ExceptionContext, *, ended_before: bool
) -> LockLost:
    """Return the error for locks that ended with their connection, before COMMIT was sent."""
    why = "the connection to the server was lost"
    if ended_before or state.transaction.is_over():
        why = "the server has ended the transaction, which took longer than its limit"
    error = failure_of(
        LockLost,
        f"lost{others_text(state)} after {state.ledger.held_for():.1f} s: {why}; nothing of the transaction is "
        "saved; run the whole transaction again",
        context,
    )
    error.connection_invalidated = True
    return about_held(state, error, strategy.name)


def _is_not_done(state: LockContext) -> bool:
    outcome = state.parts.commit_outcome
    return outcome is not None and outcome.commit_not_done() and len(state.connections.all()) == 1


def _not_committed(state: LockContext, context: ExceptionContext) -> LockLost:
    error = failure_of(
        LockLost,
        "the connection to the server was lost in COMMIT, and the server did not commit: nothing of the "
        "transaction is saved; run the whole transaction again",
        context,
    )
    error.retryable = True
    error.connection_invalidated = True
    return _about_first(state, error)


def _commit_unknown(state: LockContext, context: ExceptionContext) -> CommitUnknown:
    databases = len(state.connections.all())
    if databases > 1:
        saved = f"each of the {databases} databases has saved its part, or has not"
    else:
        saved = "the transaction is saved as a whole, or not at all"
    error = failure_of(
        CommitUnknown,
        f"the connection to the server was lost in COMMIT: {saved}, and the session cannot tell which; look in "
        "the database before you run it again",
        context,
    )
    error.connection_invalidated = True
    return _about_first(state, error)


def _about_first(state: LockContext, error: F) -> F:
    """Name the document with the oldest lock in the error, if there is one."""
    if any(map(state.ledger.has, state.ledger.places)):
        return about_held(state, error)
    return error


def failure_of(kind: type[F], message: str, context: ExceptionContext) -> F:
    """Return an error of this kind, with the driver's error."""
    return kind(
        message,
        statement=context.statement,
        params=context.parameters,
        orig=context.original_exception,
        hide_parameters=context.engine is not None and context.engine.hide_parameters,
    )


def _sends_commit(state: LockContext, context: ExceptionContext) -> bool:
    """Return whether COMMIT was sent, or a statement that may have been one.

    It is sent alone, in one of two phases, in a pipeline with the failed statement, or as text by
    the program.
    """
    statement = context.statement
    if statement is None:  # BEGIN, COMMIT, ROLLBACK
        traceback = context.original_exception.__traceback__
        return any(frame.f_code.co_name in _COMMITS for frame, _ in walk_tb(traceback))
    outbox = state.transaction.outbox
    if outbox is not None and outbox.sends_commit():
        return True
    own = runs_built(context.execution_context) or state.calls.current is not None
    return not own and may_commit(statement)


def _holds_on(state: LockContext, connection: Any) -> bool:
    found = state.connections.find(connection)
    ledger = state.ledger
    if found is None or not any(map(ledger.has, ledger.places)) or state.connections.reads_snapshot:
        return False
    return found.begun or found.opened_for is not None or len(state.connections.all()) == 1


def about_held(state: LockContext, error: F, database: str = "") -> F:
    """Add the document with the oldest lock, and the lock, to the error."""
    place, lock = state.ledger.first()
    if not database:
        engine = place[0] if isinstance(place[0], Engine) else state.connections.all()[0].engine
        database = product_of(engine.dialect)
    add_document(error, *document_of(place), lock, database)
    return error


def refuse_lost_block(began: LockTransaction, locked: Any, session: Session) -> None:
    """Refuse to save changes made in a locked() block after the end of its lock.

    :param began: the transaction in which the block began.
    :param locked: the object that the block locked, or a list of them.
    :raises LockLost: one of its locks is no longer held, and the session has changed something since;
        or something other than the session ended the transaction.
    """
    state = state_of(session)
    assert state is not None
    transaction = state.transaction
    lost: dict[Any, int] = dict.fromkeys((*began.ledger.places, *began.lost), 0)
    if transaction is began:
        began.check_locks()
        lost = dict.fromkeys(began.lost, -1)  # whether or not something was written since
        # A rollback to a savepoint releases some locks.
        lost |= _given_up_of(began, locked if isinstance(locked, list) else [locked])
    place = next((each for each in lost if not transaction.ledger.has(each)), None)
    changed = session.new or session.dirty or session.deleted
    if place is None or not (changed or transaction.wrote > lost[place]):
        return
    error = LockLost(
        "the transaction, or savepoint, that held the lock ended inside the locked() block, by commit(), "
        "rollback() or close(); later changes are not saved. End the transaction by leaving the block, or "
        "open another block for the rest"
    )
    entity, ident = document_of(place)
    add_document(error, entity, ident, began.ledger.lock_at(place), database_name(session, {}))
    raise error


def _given_up_of(began: LockTransaction, documents: Iterable[Any]) -> dict[Any, int]:
    """Return the locks of these objects that a rollback to a savepoint released."""
    given_up = began.given_up
    states = map(instance_state, documents if given_up else ())
    keys = [(root_of(each.mapper).class_, each.identity or ()) for each in states]
    return {key: given_up[key] for key in keys if key in given_up}


def others_text(state: LockContext) -> str:
    """Return the words about the other held locks."""
    others = len(state.ledger.places) - 1
    return f", with {others} other{'s' * (others > 1)}," if others > 0 else ""
