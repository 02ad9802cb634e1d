"""The parts of a session, from the options that it is made with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy.orm import Session

from ..gate import DocumentGate, SessionQueue
from ..options import LockTimeout, check_hold_limit, check_seconds
from ..transaction import SessionPart, TransactionState
from .batch import BatchPriority
from .diagnosis import Diagnosis
from .held_warnings import HeldWarnings
from .hold_limit import HoldLimit
from .pipeline import SessionPipeline
from .routing import BindRouter


def install_parts(session: Session, state: TransactionState, **options: Any) -> None:
    """Install the parts that these options of LockingSession ask for.

    :raises TypeError, ValueError: as LockingSession says.
    """
    parts = tuple(_parts(session, state, **options))
    if parts:
        state.install(*parts)


# Each stands around those before it.
def _parts(
    session: Session,
    state: TransactionState,
    *,
    batch: bool,
    gate: DocumentGate | None,
    pipeline: bool,
    diagnose: bool,
    hold_limit: LockTimeout,
    warn_held_after: LockTimeout,
) -> Iterator[SessionPart]:
    limit = queue = None
    if type(session).get_bind is not Session.get_bind:  # the program's own
        yield BindRouter(state)  # before all that asks which database is meant
    seconds = check_hold_limit(hold_limit)
    if seconds is not None:
        limit = HoldLimit(state, seconds)
        yield limit
    if pipeline:
        if session.twophase:
            raise ValueError("pipeline=True and twophase=True exclude each other")
        yield SessionPipeline(state, limit)  # sends what the limits of the wait and the hold are
    if gate is not None:
        queue = SessionQueue(gate, state)
        yield queue  # a try, and the connection for it, wait for their turn
    if batch:
        yield BatchPriority(state, queue)  # tries again, each time at the gate
    if diagnose:
        yield Diagnosis(state)
    seconds = check_seconds("warn_held_after", warn_held_after)
    if seconds is not None:
        yield HeldWarnings(seconds)
