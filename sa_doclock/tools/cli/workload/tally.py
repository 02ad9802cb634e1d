"""Counts: each thread has its own, and the run adds them up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from .... import DeadlockDetected, DocLockError
from .plan import Operation


@dataclass
class ErrorKind:
    """All errors of one class."""

    count: int
    first: str  # the first message


@dataclass
class Tally:
    """The counts of one thread, or of all."""

    waits: dict[Operation, list[float]] = field(default_factory=dict)
    """Seconds from asking for a document to having it, of each operation that was done."""
    broken_reads: int = 0
    """Reads whose details did not add up to the total."""
    stale_reads: int = 0
    """Locked reads that were older than their lock."""
    retries: int = 0
    """Operations that were run again after an error which that may help."""
    errors: dict[str, ErrorKind] = field(default_factory=dict)
    """Every attempt that failed, by class, whether or not it was run again."""

    @property
    def done(self) -> int:
        """The operations that were done."""
        return sum(map(len, list(self.waits.values())))  # its thread may add to it meanwhile

    @property
    def wrong_reads(self) -> int:
        """Broken reads and stale reads."""
        return self.broken_reads + self.stale_reads

    @property
    def error_count(self) -> int:
        """All errors."""
        return sum(kind.count for kind in list(self.errors.values()))

    @property
    def deadlocks(self) -> int:
        """The errors that were deadlocks."""
        return self.count_of(DeadlockDetected.__name__)

    def count_of(self, name: str) -> int:
        """The errors of this class."""
        return self.errors[name].count if name in self.errors else 0

    def waits_of(self, operation: Operation) -> Sequence[float]:
        """The waits of this operation."""
        return self.waits.get(operation, ())

    def note_error(self, error: BaseException) -> None:
        """Count an error."""
        name = type(error).__name__
        self.errors.setdefault(name, ErrorKind(0, first_line(error))).count += 1

    def add(self, other: Tally) -> None:
        """Count in what another thread has counted, and may still be counting."""
        for operation, waits in list(other.waits.items()):
            self.waits.setdefault(operation, []).extend(waits)
        self.broken_reads += other.broken_reads
        self.stale_reads += other.stale_reads
        self.retries += other.retries
        for name, kind in list(other.errors.items()):
            self.errors.setdefault(name, ErrorKind(0, kind.first)).count += kind.count


def first_line(error: BaseException) -> str:
    """Return the message without the statement and the link to a page."""
    text = error.reason if isinstance(error, DocLockError) else str(error)
    return (text.strip().splitlines() or [repr(error)])[0]


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The smallest value that this percentage of all does not exceed; None of nothing."""
    if not values:
        return None
    rank = math.ceil(percent / 100 * len(values))
    return sorted(values)[max(rank, 1) - 1]
