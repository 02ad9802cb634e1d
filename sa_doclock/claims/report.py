"""ClaimReport: the results of one claim_each() so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import ref

from ..keys import Identity, public_key


class FailedClaim(NamedTuple):
    """A row whose block, lock or commit failed, so that its transaction was rolled back."""

    key: Any
    """The primary key, as for ``get_entity()``: a scalar, or a tuple if it is composite."""

    error: BaseException


@dataclass
class ClaimReport:
    """The results so far; each row is counted once, by its last result."""

    processed: int = 0
    """The block ended without an exception, and the row was committed."""

    skipped: int = 0
    """Others held the row when its turn came; on SQLite, another transaction held the file."""

    no_longer_matching: int = 0
    """The first read found the row; when its turn came, it was deleted or no longer matched."""

    given_back: int = 0
    """The row was claimed, but its block was never entered, or rolled back itself."""

    failed: list[FailedClaim] = field(default_factory=list)
    """Rolled back because of an exception, which ``on_error="raise"`` also raises."""

    on_commit_errors: list[FailedClaim] = field(default_factory=list)
    """The row was committed, and then a function of ``on_commit()`` failed."""

    passes: int = 0
    """The number of searches for candidates."""

    serialised: bool = False
    """The database has no row locks (SQLite): one claim at a time, for all rows."""


class ReportBuilder:
    """Counts rows into a report, as long as something refers to the report.

    The reference is weak: errors in the report refer to their frames, and those to the loop, so a
    strong reference would keep the loop alive.

    :param remembers: a row may be found again, so its key must be kept.
    :ivar settled: the keys that this call does not claim again.
    """

    def __init__(self, report: ClaimReport, *, remembers: bool) -> None:
        self._report = ref(report)
        self.settled: set[Identity] = set()
        self._remembers = remembers
        self._not_matching: set[Identity] = set()
        self._held: set[Identity] = set()
        self._held_before: set[Identity] = set()

    @property
    def report(self) -> ClaimReport:
        """The report; an unused new one, once nothing refers to the first."""
        return self._report() or ClaimReport()

    def begin_pass(self) -> None:
        """Count a pass, which offers all rows but the settled ones again."""
        self.report.passes += 1
        self._held_before = set(self._held)

    def end_pass(self) -> None:
        """Count rows that were held, and not found again, as processed by their holder."""
        self.no_longer_matching(self._held_before & self._held)

    def skipped(self, keys: Iterable[Identity]) -> None:
        """Count rows that others hold."""
        self._held |= self._forget(keys)
        self.report.skipped = len(self._held)

    def no_longer_matching(self, keys: Iterable[Identity]) -> None:
        """Count rows that no longer match or exist."""
        keys = self._forget(keys)
        self.report.no_longer_matching += len(keys)
        if self._remembers:
            self._not_matching |= keys

    def processed(self, keys: Iterable[Identity]) -> None:
        """Count rows whose blocks are committed."""
        self.report.processed += self._settle(keys)

    def given_back(self, keys: Iterable[Identity]) -> None:
        """Count rows that were claimed and unlocked unchanged."""
        self.report.given_back += self._settle(keys)

    def failed(self, keys: Iterable[Identity], error: BaseException) -> None:
        """Add rows whose changes this error rolled back."""
        keys = list(keys)
        self.report.failed += [FailedClaim(public_key(key), error) for key in keys]
        self._settle(keys)

    def on_commit_error(self, keys: Iterable[Identity], error: BaseException) -> None:
        """Add rows that were committed before an on_commit function raised this error."""
        keys = list(keys)
        self.report.on_commit_errors += [FailedClaim(public_key(key), error) for key in keys]
        self.processed(keys)

    def _settle(self, keys: Iterable[Identity]) -> int:
        keys = self._forget(keys)
        if self._remembers:
            self.settled |= keys
        return len(keys)

    def _forget(self, keys: Iterable[Identity]) -> set[Identity]:
        """Undo the counts of these rows by an earlier result; return their keys."""
        keys = set(keys)
        self.report.no_longer_matching -= len(self._not_matching & keys)
        for counted in (self._not_matching, self._held, self._held_before):
            counted.difference_update(keys)
        self.report.skipped = len(self._held)
        return keys
