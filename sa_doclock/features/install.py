"""The parts of a session, from the options that it is made with.

The guard and the versions, which every session has, are imported here at once.  Each other feature is
imported for the first session that asks for it, or for its public name in ``sa_doclock``: the core
needs none of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, TypedDict, cast

from sqlalchemy import Table
from sqlalchemy.orm import Session

from ..core.transaction import LockContext, SessionPart
from ..options import GuardMode, LockTimeout, check_hold_limit, check_seconds
from .guard import ReadProvenance, WriteGuard, check_guard_mode
from .no_checkouts import NoCheckOuts
from .versions import DocumentVersions

if TYPE_CHECKING:
    from .gate import DocumentGate


class PartOptions(TypedDict):
    """The options of LockingSession that features are made of; see there."""

    guard: GuardMode
    guard_tracing: bool
    batch: bool
    gate: DocumentGate | None
    pipeline: bool
    diagnose: bool
    hold_limit: LockTimeout
    warn_held_after: LockTimeout
    checkouts: Table | None


# They keep nothing of a session.
_VERSIONS: Final = DocumentVersions()
_NO_CHECKOUTS: Final = NoCheckOuts()

# Threads: a test run sets it before it makes sessions, which read it at once.
options_of_all: dict[str, Any] = {}
"""Options that every session has from now on, whatever it is made with: those of a test run."""


def install_parts(session: Session, state: LockContext, options: PartOptions) -> None:
    """Install the parts that these options ask for.

    :raises TypeError, ValueError: as LockingSession says.
    """
    check_guard_mode(options["guard"])
    if options_of_all:
        options = cast("PartOptions", {**options, **options_of_all})
    # The hooks named around_... of each stand around those before it.  A pipeline and a router put
    # their own in place of what is there, so that they come first of their kind.
    state.parts.add(
        *_of_documents(session, state, options),
        *_of_waits(session, state, options),
        *_of_reports(state, options),
    )


def _of_documents(
    session: Session, state: LockContext, options: PartOptions
) -> Iterator[SessionPart]:
    """Yield what looks at the documents that are written."""
    if options["guard"] != "off":
        reads = None
        if options["guard_tracing"]:
            reads = ReadProvenance(session, state)
            yield reads
        yield WriteGuard(state, options["guard"], reads)
    _VERSIONS.follow(session)
    yield _VERSIONS  # raises versions where the guard has allowed the flush


def _of_waits(session: Session, state: LockContext, options: PartOptions) -> Iterator[SessionPart]:
    """Yield what chooses the database of a lock, and what limits, saves or follows its wait."""
    limit = queue = None
    if type(session).get_bind is not Session.get_bind:  # the program's own
        from .routing import BindRouter

        yield BindRouter(state)  # before all that asks which database is meant
    seconds = check_hold_limit(options["hold_limit"])
    if seconds is not None:
        from .hold_limit import HoldLimit

        limit = HoldLimit(state, seconds)
        yield limit
    if options["pipeline"]:
        from .pipeline import SessionPipeline

        if session.twophase:
            raise ValueError("pipeline=True and twophase=True exclude each other")
        yield SessionPipeline(state, limit)  # sends what limits the wait and the hold
    if options["gate"] is not None:
        from .gate import SessionQueue

        queue = SessionQueue(options["gate"], state)
        yield queue  # a try, and the connection for it, wait for their turn
    if options["batch"]:
        from .batch import BatchPriority

        yield BatchPriority(state, queue)  # tries again, each time at the gate
    table = options["checkouts"]
    if table is None:
        yield _NO_CHECKOUTS
    else:
        from .checkouts import CheckOuts, check_table

        # Under the lock, however it was got.
        yield CheckOuts(state, check_table(table), pipelined=options["pipeline"])


def _of_reports(state: LockContext, options: PartOptions) -> Iterator[SessionPart]:
    """Yield what tells of locks that were refused, or that are held for long."""
    if options["diagnose"]:
        from .diagnosis import Diagnosis

        yield Diagnosis(state)
    seconds = check_seconds("warn_held_after", options["warn_held_after"])
    if seconds is not None:
        from .held_warnings import HeldWarnings

        yield HeldWarnings(seconds)
