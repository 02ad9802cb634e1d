"""The parts of a session, from its options.

Adoption, the guard and the versions, which most sessions have, are imported here at once.  Each
other feature is imported when a session first uses it, or for its public name in ``sa_doclock``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import Table
from sqlalchemy.orm import Session

from ..adoption import SessionAdoption
from ..checkout_info import NO_TABLE, NOBODY
from ..core.transaction import LockContext, LockRequest, SessionPart
from ..errors import LockMisuse
from ..guard import ReadProvenance, WriteGuard, check_guard_mode
from ..options import GuardMode, LockTimeout, check_hold_limit, check_seconds
from ..versions import DocumentVersions

if TYPE_CHECKING:
    from .gate import DocumentGate


class PartOptions(NamedTuple):
    """The options of LockingSession that decide which parts a session has; see there.

    :ivar routed: a ``get_bind()`` of the program's own chooses the databases of the session.
    """

    guard: GuardMode = "raise"
    guard_tracing: bool = False
    batch: bool = False
    gate: DocumentGate | None = None
    pipeline: bool = False
    diagnose: bool = False
    hold_limit: LockTimeout = None
    warn_held_after: LockTimeout = None
    checkouts: Table | None = None
    adopt_for_update: bool = True
    commit_outcome: bool = False
    routed: bool = False


OF_DOCUMENTS_ALONE: Final = (PartOptions(), PartOptions(adopt_for_update=False))
"""The options of a session without parts."""


# Neither keeps the state of a session.
_ADOPTION: Final = SessionAdoption()
_VERSIONS: Final = DocumentVersions()


class NoCheckOuts:
    """The ``CheckoutCondition`` of every session without check-outs."""

    def check_request(self, request: LockRequest) -> None:
        """See :class:`CheckoutCondition`.  :raises LockMisuse: a check-out was given."""
        if request.given.get("checkout", NOBODY) is not NOBODY:
            raise LockMisuse(NO_TABLE)

    def check_found(self, request: LockRequest, found: object) -> None:
        """See :class:`CheckoutCondition`: there is nothing to check."""


_WITHOUT_CHECKOUTS: Final = (_VERSIONS, NoCheckOuts())

# Threads: a test run sets it before it creates sessions.
options_of_all: dict[str, Any] = {}
"""Options of every session from now on, in addition to its own: set by a test run."""


def install_parts(session: Session, state: LockContext, options: PartOptions) -> None:
    """Install the parts for these options.

    :raises TypeError, ValueError: as LockingSession says.
    """
    if options_of_all:
        options = options._replace(**options_of_all)
    parts = state.parts
    parts.adoption = _ADOPTION if options.adopt_for_update else None
    parts.versions, parts.conditions = _VERSIONS, _WITHOUT_CHECKOUTS
    if options.guard != "off":
        if options.guard != "raise":
            check_guard_mode(options.guard)
        reads = ReadProvenance(session, state) if options.guard_tracing else None
        parts.guard = WriteGuard(state, options.guard, reads)
    _VERSIONS.follow(session)
    if options not in OF_DOCUMENTS_ALONE:
        # The hooks named around_... of each part run around those of the parts before it.  A pipeline
        # and a router put their own in place of the present one, so each comes first of its kind.
        parts.add(*_of_waits(session, state, options), *_of_reports(state, options))


def _of_waits(session: Session, state: LockContext, options: PartOptions) -> Iterator[SessionPart]:
    """Yield the parts that choose the database of a lock, and limit, queue or repeat its wait."""
    parts, limit, pipeline, lookup = state.parts, None, None, None
    if options.routed:
        from .routing import BindRouter

        yield BindRouter(state)  # before any part that asks for the database
    seconds = check_hold_limit(options.hold_limit)
    if seconds is not None:
        from .hold_limit import HoldLimit

        limit = parts.deadline = HoldLimit(state, seconds)
        yield limit
    if options.commit_outcome:
        from .commit_lookup import CommitLookup

        lookup = parts.commit_outcome = CommitLookup(session, state)
        yield lookup
    if options.pipeline:
        from .pipeline import SessionPipeline

        if session.twophase:
            raise ValueError("pipeline=True and twophase=True exclude each other")
        pipeline = parts.pipeline = SessionPipeline(state, limit)
        pipeline.learn = None if lookup is None else lookup.learn_with_writes
        yield pipeline  # sends the limits of the wait and the hold
    if options.gate is not None:  # a try, and its connection, wait for their turn
        yield from _of_gate(state, options.gate)
    if options.batch:
        from .batch import BatchPriority

        yield BatchPriority(state)  # repeats a try, each time through the gate
    if options.checkouts is not None:
        from .checkouts import CheckOuts, check_table

        checkouts = CheckOuts(state, check_table(options.checkouts), pipelined=options.pipeline)
        parts.conditions = (_VERSIONS, checkouts)
        if pipeline is not None:
            pipeline.along.append(checkouts.reads_along)
        yield checkouts  # checks under the lock, whichever part took it


def _of_gate(state: LockContext, gate: DocumentGate) -> Iterator[SessionPart]:
    from .gate import SessionQueue

    yield SessionQueue(gate, state)
    if gate.refuses_second_session:
        from .second_session import SecondSession

        yield SecondSession(state, gate)


def _of_reports(state: LockContext, options: PartOptions) -> Iterator[SessionPart]:
    if options.diagnose:
        from .diagnosis import Diagnosis

        yield Diagnosis(state)
    seconds = check_seconds("warn_held_after", options.warn_held_after)
    if seconds is not None:
        from .held_warnings import HeldWarnings

        yield HeldWarnings(seconds)
