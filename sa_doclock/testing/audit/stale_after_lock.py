"""``stale-after-lock``: a row is locked, and its object keeps the values from before the lock."""

from __future__ import annotations

from collections.abc import Iterator

from .finding import AuditFinding
from .rows import Row, short_name
from .rule import Rule
from .transactions import Read, Transaction, Write


class StaleAfterLock(Rule):
    """Certain where a value is then written that depends on the old ones."""

    code = "stale-after-lock"

    def kept_values(self, transaction: Transaction, row: Row, before: Read, read: Read) -> None:
        """Note the two reads; the end of the transaction tells what has come of it."""
        transaction.stale[row] = before
        key = (row.entity, str(before.place), str(read.place))

        def end(committed: bool) -> None:
            self.tally.add((*key, committed and row in transaction.computed_from_stale))

        transaction.later(end)

    def wrote(self, transaction: Transaction, write: Write) -> None:
        before = transaction.stale.get(write.row)
        if before is None or write.kind != "update":
            return
        if any(write.depends_on(before, name) for name in write.changed):
            transaction.computed_from_stale.add(write.row)

    def findings(self) -> Iterator[AuditFinding]:
        for (entity, before, locked, certain), count in self.tally:
            if not certain and (entity, before, locked, True) in self.tally:
                continue
            name = short_name(entity)
            then = "and is then written" if certain else "until it is refreshed"
            message = (
                f"{name} keeps the values that {before} has read, {then}: {locked} locks its row, but "
                "SQLAlchemy does not refresh an object that is loaded"
            )
            cure = (
                f"add .execution_options(populate_existing=True) at {locked}, or "
                f"session.get_one_entity({name}, ident, LockOptions.ForUpdate) of a LockingSession"
            )
            yield self._finding(certain, message, (before, locked), cure, count)
