"""LockLost: the errors of locks that ended before their transaction was committed."""

from __future__ import annotations

from typing import Any, TypeVar

from sqlalchemy import Engine
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.orm import Session

from ...dialects import product_of
from ...dialects.base import LockStrategy, NativeCode
from ...errors import LockFailed, LockLost
from ..lock_request import add_document, database_name
from .context import LockContext, state_of
from .lock_transaction import LockTransaction
from .locks_lost import document_of

F = TypeVar("F", bound=LockFailed)


def locks_lost_with_connection(
    state: LockContext,
    strategy: LockStrategy,
    code: NativeCode | None,
    context: ExceptionContext,
) -> LockLost | None:
    """Return the error of a statement that finds the connection, and so its locks, lost.

    None where no lock was held there; and where COMMIT was sent: then nobody knows whether it was
    done, unless the server says that it had ended the transaction before.
    """
    connection = context.connection
    assert connection is not None
    ended_before = code in strategy.errors.ended_while_idle
    if not _holds_on(state, connection):
        return None
    of_one_database = state.connections.commits_now() and len(state.connections.all()) == 1
    if _sends_commit(state, context) and not (ended_before and of_one_database):
        return None
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


def failure_of(kind: type[F], message: str, context: ExceptionContext) -> F:
    """Return the error of this kind, with what the driver has raised."""
    return kind(
        message,
        statement=context.statement,
        params=context.parameters,
        orig=context.original_exception,
        hide_parameters=context.engine is not None and context.engine.hide_parameters,
    )


def _sends_commit(state: LockContext, context: ExceptionContext) -> bool:
    """Return whether COMMIT was sent, alone or in a pipeline with the statement that has failed."""
    if context.statement is None:  # BEGIN, COMMIT, ROLLBACK
        return True
    outbox = state.parts.outbox
    return outbox is not None and outbox.sends_commit()


def _holds_on(state: LockContext, connection: Any) -> bool:
    found = state.connections.find(connection)
    ledger = state.ledger
    if found is None or not any(map(ledger.has, ledger.places)) or state.connections.reads_snapshot:
        return False
    return found.begun or found.opened_for is not None or len(state.connections.all()) == 1


def about_held(state: LockContext, error: LockLost, database: str = "") -> LockLost:
    """Put the document that is held for longest, and its lock, into the error."""
    place, lock = state.ledger.first()
    if not database:
        engine = place[0] if isinstance(place[0], Engine) else state.connections.all()[0].engine
        database = product_of(engine.dialect)
    add_document(error, *document_of(place), lock, database)
    return error


def refuse_after(ended: LockTransaction, session: Session) -> None:
    """Refuse to save what was changed in a locked() block after the end of its transaction.

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
        "close(); what was changed after that is not saved. End the transaction by leaving the block, or "
        "open another block for the rest"
    )
    entity, ident = document_of(place)
    add_document(error, entity, ident, ledger.lock_at(place), database_name(session, {}))
    raise error


def others_text(state: LockContext) -> str:
    """Return the words about the other locks that are held."""
    others = len(state.ledger.places) - 1
    return f", with {others} other{'s' * (others > 1)}," if others > 0 else ""
