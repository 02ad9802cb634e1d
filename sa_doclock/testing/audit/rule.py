"""The base of all rules: they are told what a transaction does, and keep what they have found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from .finding import AuditFinding, Severity
from .places import NOWHERE, Place, Places
from .rows import Header, Row
from .sent import Sent, UpdateSent
from .tally import Tally
from .transactions import Read, RowLock, Transaction, Write

HeaderRows = Iterable[tuple[Header, Row]]


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
        self,
        certain: bool,
        message: str,
        sites: Iterator[str] | tuple[str, ...],
        cure: str,
        count: int,
    ) -> AuditFinding:
        severity: Severity = "error" if certain else "warning"
        places = tuple(dict.fromkeys(site for site in sites if site != str(NOWHERE[0])))
        return AuditFinding(self.code, severity, certain, message, places, cure, count)
