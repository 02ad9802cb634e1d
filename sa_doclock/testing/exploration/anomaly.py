"""The kind of anomaly that a failed run shows, from the rows that its transactions read and wrote."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ...errors import DeadlockDetected
from ..file_locks import COMMIT
from ..outcome import Outcome
from .accesses import Access, Mode
from .participant import OWN_TRANSACTION, Step
from .search import FIRST, SECOND

LOST_UPDATE: Final = "lost update"
WRITE_SKEW: Final = "write skew"
READ_SKEW: Final = "read skew"
DEADLOCK: Final = "deadlock"
ERROR: Final = "error"
UNKNOWN: Final = "not known"

_READS: Final = frozenset({Mode.SNAPSHOT_READ, Mode.READ, Mode.SHARE, Mode.LOCK})


class _Use(NamedTuple):
    """A row that a function has read or written.

    :ivar at: the place in the run: of the read, or from which on others see what was written.
    """

    at: int
    access: Access


@dataclass
class _Work:
    """All that one function has read, and that it has written and committed."""

    reads: list[_Use] = field(default_factory=list)
    writes: list[_Use] = field(default_factory=list)


def kind_of(steps: Sequence[Step], outcomes: Iterable[Outcome]) -> str:
    """Return the kind of anomaly of a run, by its steps in the order in which they were sent."""
    errors = [one.error for one in outcomes if one.error is not None]
    is_deadlock = any(isinstance(one, DeadlockDetected) for one in errors)
    if is_deadlock or any(step.is_deadlock for step in steps):
        return DEADLOCK
    found = _kind_of_work(_work_of(FIRST, steps), _work_of(SECOND, steps))
    return found or (ERROR if errors else UNKNOWN)


def _kind_of_work(one: _Work, other: _Work) -> str | None:
    if _loses(one, other) or _loses(other, one):
        return LOST_UPDATE
    sides = _sides(one, other), _sides(other, one)
    if all(True in before for before in sides):
        return WRITE_SKEW
    if any(len(before) > 1 for before in sides):
        return READ_SKEW
    return None


def _work_of(function: int, steps: Sequence[Step]) -> _Work:
    work = _Work()
    own = [(at, step) for at, step in enumerate(steps) if step.function == function]
    commits = {step.transaction: at for at, step in own if step.statement == COMMIT}
    for at, step in own:
        if step.error is None:
            seen_at = at if step.transaction == OWN_TRANSACTION else commits.get(step.transaction)
            _add_step(work, at, step, seen_at)
    return work


def _add_step(work: _Work, at: int, step: Step, seen_at: int | None) -> None:
    """Add what a step has read, and what it has written if others have seen it."""
    for access in step.rows:
        if access.mode in _READS:
            work.reads.append(_Use(at, access))
        elif seen_at is not None:
            work.writes.append(_Use(seen_at, access))


def _loses(one: _Work, other: _Work) -> bool:
    """Return whether one function overwrote what the other had written after it had read the row."""
    return any(
        read.at < theirs.at < write.at
        for write in one.writes
        for theirs in other.writes
        if theirs.access.overlaps(write.access)
        for read in one.reads
        if read.access.overlaps(theirs.access)
    )


def _sides(one: _Work, other: _Work) -> set[bool]:
    """Return whether one function read the rows that the other one wrote before its commit.

    Both answers where it has read some before and some after; none where it has read none.
    """
    return {
        read.at < write.at
        for read in one.reads
        for write in other.writes
        if read.access.overlaps(write.access)
    }
