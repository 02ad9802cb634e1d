"""LockLost: the errors of locks that ended before their transaction was committed."""

from __future__ import annotations

from traceback import walk_tb
from typing import Any, Final, TypeVar

from sqlalchemy import Engine
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.orm import Session

from ...dialects import product_of
from ...dialects.base import Ends, LockStrategy, NativeCode
from ...errors import CommitUnknown, LockFailed, LockLost
from ..ledger import document_of
from ..lock_request import add_document, database_name
from .connection_events import may_commit, runs_built
from .context import LockContext, state_of
from .lock_transaction import LockTransaction

_COMMITS: Final = frozenset({"do_commit", "do_prepare_twophase", "do_commit_twophase"})
"""The methods of a dialect that send COMMIT; after PREPARE the server keeps the transaction."""

F = TypeVar("F", LockFailed, LockLost, CommitUnknown)


def lost_with_connection(
    state: LockContext,
    strategy: LockStrategy | None,
    code: NativeCode | None,
    context: ExceptionContext,
) -> LockLost | CommitUnknown | None:
    """Return the error of a statement that finds the connection lost, and its locks with it.

    None where no lock was held there, and nothing was committed.
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
    """Return the error of locks that ended with their connection, before a COMMIT was sent."""
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
    """Return whether the COMMIT that failed, of one database, was certainly not done."""
    not_done = any(not_done() for not_done in state.parts.commit_not_done)
    return not_done and len(state.connections.all()) == 1


def _not_committed(state: LockContext, context: ExceptionContext) -> LockLost:
    """Return the error of a COMMIT of which it is known that the server did not do it."""
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
    """Return the error of a COMMIT whose answer is lost."""
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
    """Put the document that is held for longest into the error, where one is."""
    if any(map(state.ledger.has, state.ledger.places)):
        return about_held(state, error)
    return error


def failure_of(kind: type[F], message: str, context: ExceptionContext) -> F:
    """Return the error of this kind, with the driver's error."""
    return kind(
        message,
        statement=context.statement,
        params=context.parameters,
        orig=context.original_exception,
        hide_parameters=context.engine is not None and context.engine.hide_parameters,
    )


def _sends_commit(state: LockContext, context: ExceptionContext) -> bool:
    """Return whether COMMIT was sent, or a statement that may have been one.

    It is sent alone, in one of two phases, in a pipeline with the statement that has failed, or by the
    program as text.
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
    """Put the document that is held for longest, and its lock, into the error."""
    place, lock = state.ledger.first()
    if not database:
        engine = place[0] if isinstance(place[0], Engine) else state.connections.all()[0].engine
        database = product_of(engine.dialect)
    add_document(error, *document_of(place), lock, database)
    return error


def refuse_after(ended: LockTransaction, session: Session) -> None:
    """Refuse to save changes made in a locked() block after the end of its transaction.

    :param ended: the transaction in which the block began.
    :raises LockLost: a lock of it is not held any more, and something was changed since.
    """
    state = state_of(session)
    assert state is not None
    changed = state.transaction.wrote or session.new or session.dirty or session.deleted
    ledger = ended.ledger
    place = next((one for one in ledger.places if not state.ledger.has(one)), None)
    if place is None or not changed:
        return
    error = LockLost(
        "the transaction that held the lock ended inside the locked() block, by commit(), rollback() or "
        "close(); later changes are not saved. End the transaction by leaving the block, or "
        "open another block for the rest"
    )
    entity, ident = document_of(place)
    add_document(error, entity, ident, ledger.lock_at(place), database_name(session, {}))
    raise error


def others_text(state: LockContext) -> str:
    """Return the words about the other locks that are held."""
    others = len(state.ledger.places) - 1
    return f", with {others} other{'s' * (others > 1)}," if others > 0 else ""
