"""``lock-without-effect``: a lock is asked for, and what the database gets does not lock."""

from __future__ import annotations

from collections.abc import Iterator

from .finding import AuditFinding
from .places import Place
from .rule import Rule
from .sent import Sent


class LockWithoutEffect(Rule):
    """Always certain: the text that was sent tells."""

    code = "lock-without-effect"

    def without_effect(self, sent: Sent, database: str, reason: str, place: Place) -> None:
        self.tally.add((", ".join(sorted(sent.tables)), database, reason, str(place)))

    def findings(self) -> Iterator[AuditFinding]:
        for (tables, database, reason, place), count in self.tally:
            of = f" of {tables}" if tables else ""
            message = f"the lock{of} at {place} has no effect on {database}: {reason}"
            cure = (
                "use a LockingSession, which makes the lock real or raises LockNotSupported: "
                "sessionmaker(engine, class_=LockingSession)"
            )
            yield self._finding(True, message, (place,), cure, count)
