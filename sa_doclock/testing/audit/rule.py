"""The base of all rules: they are told what a transaction does, and count what they have found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Final

from .finding import AuditFinding, Severity
from .places import NOWHERE, Place, Places
from .rows import Header, Row
from .sent import Sent, UpdateSent
from .transactions import Read, RowLock, Transaction, Write

HeaderRows = Iterable[tuple[Header, Row]]

LIMIT: Final = 2_000
"""The number of different things that a tally keeps; more are counted together."""


class Tally:
    """Counts by key; a key is a tuple of texts and numbers, so that it can be sent to another process."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._counts: dict[tuple[Any, ...], int] = {}
        self._limit = limit
        self.left_out = 0
        """The number of observations that have found no room."""

    def add(self, key: tuple[Any, ...], times: int = 1) -> None:
        """Count this key."""
        if key in self._counts or len(self._counts) < self._limit:
            self._counts[key] = self._counts.get(key, 0) + times
        else:
            self.left_out += times

    def __contains__(self, key: object) -> bool:
        return key in self._counts

    def __iter__(self) -> Iterator[tuple[tuple[Any, ...], int]]:
        return iter(list(self._counts.items()))

    def export(self) -> list[Any]:
        """Return the counts as lists, which ``merge()`` of another process takes."""
        return [self.left_out, *([*key, times] for key, times in self)]

    def merge(self, exported: Iterable[Any]) -> None:
        """Add the counts of another process."""
        left_out, *rows = exported
        self.left_out += left_out
        for *key, times in rows:
            self.add(tuple(key), times)


class Rule:
    """One code of findings.  A rule overrides the methods of the events that it needs."""

    code: ClassVar[str]

    def __init__(self) -> None:
        self.tally = Tally()

    def locked(self, transaction: Transaction, row: Row, lock: RowLock) -> None:
        """Learn of a row lock, before the transaction has it."""

    def kept_values(self, transaction: Transaction, row: Row, before: Read, read: Read) -> None:
        """Learn that a row was locked whose object keeps the values of an earlier read."""

    def wrote(self, transaction: Transaction, write: Write) -> None:
        """Learn of a row that a flush has written, before the transaction has its lock."""

    def updated(
        self, transaction: Transaction, update: UpdateSent, row: Row | None, places: Places
    ) -> None:
        """Learn of an UPDATE that the program has sent itself."""

    def inserted(
        self, transaction: Transaction, detail: str, headers: HeaderRows, place: Place
    ) -> None:
        """Learn of an INSERT that the program has sent itself, and of the rows that it refers to."""

    def read_table(self, transaction: Transaction, tables: frozenset[str], place: Place) -> None:
        """Learn of a SELECT that locks nothing."""

    def without_effect(self, sent: Sent, database: str, reason: str, place: Place) -> None:
        """Learn of a lock that was asked for, and that the database does not get."""

    def was_idle(self, transaction: Transaction, seconds: float, place: Place) -> None:
        """Learn how long no statement has run, before the next one or the end."""

    def export(self) -> Any:
        """Return what it has found, as lists, texts and numbers."""
        return self.tally.export()

    def merge(self, exported: Any) -> None:
        """Add what the same rule has found in another process."""
        self.tally.merge(exported)

    @property
    def left_out(self) -> int:
        """The number of observations that have found no room."""
        return self.tally.left_out

    def findings(self) -> Iterator[AuditFinding]:
        """Yield the findings, each place of the program once."""
        raise NotImplementedError

    def _finding(
        self, certain: bool, message: str, sites: tuple[str, ...], cure: str, count: int
    ) -> AuditFinding:
        severity: Severity = "error" if certain else "warning"
        places = tuple(dict.fromkeys(site for site in sites if site != str(NOWHERE[0])))
        return AuditFinding(self.code, severity, certain, message, places, cure, count)
