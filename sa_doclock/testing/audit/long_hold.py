"""``long-hold``: a lock is held while no statement runs, and all others wait for the program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from .finding import AuditFinding
from .places import Place
from .rule import Rule
from .transactions import Transaction

HOLD_LIMIT: Final = 0.2
"""The seconds without a statement that are not reported."""


class LongHold(Rule):
    """Certain, and no more than a warning: nothing gets lost, but others wait."""

    code = "long-hold"

    def __init__(self, hold_limit: float = HOLD_LIMIT) -> None:
        super().__init__()
        self._hold_limit = hold_limit
        self._longest: dict[tuple[str, ...], float] = {}

    def was_idle(self, transaction: Transaction, seconds: float, place: Place) -> None:
        if seconds < self._hold_limit or transaction.first_lock is None:
            return
        key = (str(transaction.first_lock), str(place))
        self.tally.add(key)
        if key in self.tally:
            self._longest[key] = max(seconds, self._longest.get(key, 0.0))

    def export(self) -> Any:
        return [self.tally.export(), [[*key, longest] for key, longest in self._longest.items()]]

    def merge(self, exported: Any) -> None:
        counts, longest = exported
        self.tally.merge(counts)
        for *places, seconds in longest:
            key = tuple(places)
            self._longest[key] = max(seconds, self._longest.get(key, 0.0))

    def findings(self) -> Iterator[AuditFinding]:
        for key, count in self.tally:
            locked, following = key
            message = (
                f"the lock that {locked} has taken is held for up to {self._longest[key]:.1f} s "
                f"while no statement runs, before {following}"
            )
            cure = (
                f"do the slow work before the lock at {locked}, or after the commit: "
                "session.on_commit(function) of a LockingSession"
            )
            yield replace(self._finding(True, message, key, cure, count), severity="warning")
