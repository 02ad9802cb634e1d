"""LockLost: the errors of locks that ended before their transaction was committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine
from sqlalchemy.engine import ExceptionContext

from ..dialects import product_of
from ..dialects.base import LockStrategy, NativeCode
from ..errors import LockLost
from ..lock_info import DocumentKey, document_label, public_key
from .ledger import NamedKey
from .request import add_document

if TYPE_CHECKING:
    from .state import TransactionState


def ended_by_other(place: DocumentKey | NamedKey, outcome: str) -> LockLost:
    """Return the error of a write after the program, or the driver, has ended the transaction."""
    how = "ended" if outcome == "lost" else outcome
    error = LockLost(
        f"the transaction that held the lock was {how} by another than this session: by the "
        "session's Connection, by a statement that commits, or by the driver; nothing is "
        "written without the lock: lock again, or call rollback()"
    )
    error.entity, error.ident = _document(place)
    error.args = (f"{document_label(error.entity, error.ident)}: {error.args[0]}",)
    return error


def hold_limit_exceeded(state: TransactionState, seconds: float) -> LockLost:
    """Return the error of a transaction that has held its locks for longer than that."""
    lent = any(map(state.connections.is_lent, state.connections.all()))
    done = (
        "call rollback(): nothing may be" if lent else "the transaction is rolled back, nothing is"
    )
    return _about_held(
        state,
        LockLost(
            f"held{_others(state)} for {state.ledger.held_for():.1f} s, past the hold_limit of {seconds:g} s; "
            f"{done} saved; run the whole transaction again with less to do between the lock and "
            "the commit, or raise hold_limit"
        ),
        "",
    )


def lost_with_connection(
    state: TransactionState,
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
    ended_before = code in strategy.ended_while_idle
    if not _holds_on(state, connection):
        return None
    if _sends_commit(state, context) and not (ended_before and _commits_one(state)):
        return None
    why = "the connection to the server was lost"
    if ended_before or state.connections.hold_limit_is_over():
        why = "the server has ended the transaction, which took longer than its limit"
    error = LockLost(
        f"lost{_others(state)} after {state.ledger.held_for():.1f} s: {why}; nothing of the transaction is "
        "saved; run the whole transaction again",
        statement=context.statement,
        params=context.parameters,
        orig=context.original_exception,
        hide_parameters=context.engine is not None and context.engine.hide_parameters,
    )
    error.connection_invalidated = True
    return _about_held(state, error, strategy.name)


def _sends_commit(state: TransactionState, context: ExceptionContext) -> bool:
    """Return whether COMMIT was sent, alone or in a pipeline with the statement that has failed."""
    if context.statement is None:  # BEGIN, COMMIT, ROLLBACK
        return True
    return state.pipeline is not None and state.pipeline.commit_sent()


def _commits_one(state: TransactionState) -> bool:
    """Return whether the statement under way is the COMMIT of the session's only database."""
    return state.commits_now and len(state.connections.all()) == 1


def _holds_on(state: TransactionState, connection: Any) -> bool:
    found = state.connections.find(connection)
    if found is None or state.ledger.empty or state.connections.reads_snapshot:
        return False
    return found.begun or found.opened_for is not None or len(state.connections.all()) == 1


def _about_held(state: TransactionState, error: LockLost, database: str) -> LockLost:
    place, lock = state.ledger.first()
    if not database:
        engine = place[0] if isinstance(place[0], Engine) else state.connections.all()[0].engine
        database = product_of(engine.dialect)
    add_document(error, *_document(place), lock, database)
    return error


def _document(place: DocumentKey | NamedKey) -> tuple[type[Any] | None, Any]:
    if isinstance(place[0], Engine):
        return None, place[1]
    return place[0], public_key(place[1])


def _others(state: TransactionState) -> str:
    others: Sequence[object] = state.ledger.places()[1:]
    return f", with {len(others)} other{'s' * (len(others) > 1)}," if others else ""
