"""What has become of the rows: the report, which can be read at any time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import ref

from .query import Identity


class FailedClaim(NamedTuple):
    """A row whose block raised, or whose lock or commit failed; its transaction was undone."""

    key: Any
    """The primary key, as ``get_entity()`` takes it: a scalar, or a tuple when composite."""

    error: BaseException


@dataclass
class ClaimReport:
    """What has become of the rows so far; each is counted once, by what came of it last."""

    processed: int = 0
    """Committed: the block has ended well."""

    skipped: int = 0
    """Held by others when their turn came; on SQLite, when the file was."""

    no_longer_matching: int = 0
    """Found by the first read, but deleted or no longer matching when their turn came."""

    given_back: int = 0
    """Claimed, but never entered, or rolled back by their own block."""

    failed: list[FailedClaim] = field(default_factory=list)
    """Rolled back because of an exception; without ``on_error="collect"`` also raised."""

    on_commit_errors: list[FailedClaim] = field(default_factory=list)
    """Processed and committed, but a function given to ``on_commit()`` raised after it."""

    passes: int = 0
    """How often candidates were looked for from the beginning."""

    serialised: bool = False
    """The database locks no rows (SQLite): one claim at a time, whatever row it is of."""


class Tally:
    """Keeps the report, for as long as somebody has it.

    The errors in it lead to the frames that they came through, and those to the loop itself: a
    report that was kept here would keep the loop for ever.

    :param remembers: whether a row may be found again, so that its key is to be kept.
    """

    def __init__(self, report: ClaimReport, *, remembers: bool) -> None:
        self._report = ref(report)
        self.settled: set[Identity] = set()  # never claimed again by this call
        self._remembers = remembers
        self._gone: set[Identity] = set()
        self._held: set[Identity] = set()
        self._held_before: set[Identity] = set()

    @property
    def report(self) -> ClaimReport:
        """The report; one that nobody will read where nobody has it any more."""
        return self._report() or ClaimReport()

    def new_pass(self) -> None:
        """All rows come up once more, but those that are settled."""
        self.report.passes += 1
        self._held_before = set(self._held)

    def end_of_pass(self) -> None:
        """What was held, and has not been found again, was processed by its holder."""
        self.gone(self._held_before & self._held)

    def skipped(self, keys: Iterable[Identity]) -> None:
        """Others hold them."""
        keys = set(keys)
        self._back(keys)
        self._held |= keys
        self._held_before -= keys
        self.report.skipped = len(self._held)

    def gone(self, keys: Iterable[Identity]) -> None:
        """They do not match, or are not there."""
        keys = set(keys) - self._gone
        self.report.no_longer_matching += len(keys)
        if self._remembers:
            self._gone |= keys
        self._not_held(keys)

    def processed(self, keys: Iterable[Identity]) -> None:
        """They are committed."""
        self.report.processed += self._settle(keys)

    def given_back(self, keys: Iterable[Identity]) -> None:
        """They were claimed in vain."""
        self.report.given_back += self._settle(keys)

    def failed(self, keys: Iterable[Identity], error: BaseException) -> None:
        """They were undone."""
        keys = list(keys)
        self.report.failed += [FailedClaim(told(key), error) for key in keys]
        self._settle(keys)

    def afterwards(self, keys: Iterable[Identity], error: BaseException) -> None:
        """They are committed, and what was to follow failed."""
        keys = list(keys)
        self.report.on_commit_errors += [FailedClaim(told(key), error) for key in keys]
        self.processed(keys)

    def _settle(self, keys: Iterable[Identity]) -> int:
        keys = set(keys)
        if self._remembers:
            self.settled |= keys
        self._back(keys)
        self._not_held(keys)
        return len(keys)

    def _back(self, keys: set[Identity]) -> None:
        self.report.no_longer_matching -= len(self._gone & keys)
        self._gone -= keys

    def _not_held(self, keys: set[Identity]) -> None:
        self._held -= keys
        self._held_before -= keys
        self.report.skipped = len(self._held)


def told(key: Identity) -> Any:
    """The primary key as the user of the report gives it to ``get_entity()``."""
    return key[0] if len(key) == 1 else key
