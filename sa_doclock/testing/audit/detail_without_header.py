"""``detail-without-header``: a detail is written without the lock that others take on its header."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from .finding import AuditFinding
from .places import Place
from .rows import Header, Row, entity_name, header_rows, short_name
from .rule import HeaderRows, Rule
from .transactions import RowLock, Transaction, Write


class _Pair(NamedTuple):
    """A header's class, the class of its details, and the relationship between them."""

    header: str
    detail: str
    collection: str | None


class DetailWithoutHeader(Rule):
    """Certain where the header depends on its details.

    That is where a transaction that has locked the header writes it too, and has read its details or
    has a relationship that deletes those that it loses.  A detail whose own row is locked is none.
    """

    code = "detail-without-header"

    def wrote(self, transaction: Transaction, write: Write) -> None:
        own = transaction.locks.get(write.row)
        if own is not None and not own.by_write:
            return
        detail = entity_name(write.mapper)
        self.inserted(transaction, detail, header_rows(write.state), write.place)

    def inserted(
        self, transaction: Transaction, detail: str, headers: HeaderRows, place: Place
    ) -> None:
        if transaction.has_wide_lock:
            return
        for header, row in headers:
            pair = _Pair(row.entity, detail, header.collection)
            lock = transaction.locks.get(row)
            if row in transaction.inserted or row.entity in transaction.inserted_into:
                continue  # a new document
            if lock is None:
                self._note_unlocked(transaction, pair, place)
            elif not lock.by_write:
                self._note_locked(transaction, pair, header, row, lock)

    def _note_unlocked(self, transaction: Transaction, pair: _Pair, place: Place) -> None:
        transaction.later(lambda _: self.tally.add(("unlocked", *pair, str(place), False)))

    def _note_locked(
        self, transaction: Transaction, pair: _Pair, header: Header, row: Row, lock: RowLock
    ) -> None:
        def end(_committed: bool) -> None:
            belongs = header.owns or pair.detail in transaction.read_after_lock
            depends = belongs and row in transaction.updated
            self.tally.add(("locked", *pair, str(lock.place), depends))

        transaction.later(end)

    def findings(self) -> Iterator[AuditFinding]:
        locked: dict[_Pair, dict[str, bool]] = defaultdict(dict)
        for (kind, *pair, place, depends), _ in self.tally:
            if kind == "locked":
                places = locked[_Pair(*pair)]
                places[place] = depends or places.get(place, False)
        for (kind, *of, place, _), count in self.tally:
            if kind == "unlocked" and locked.get(_Pair(*of)):
                yield self._judge(_Pair(*of), place, locked[_Pair(*of)], count)

    def _judge(self, pair: _Pair, place: str, locked: dict[str, bool], count: int) -> AuditFinding:
        header, detail = short_name(pair.header), short_name(pair.detail)
        other = max(locked, key=lambda one: locked[one])
        part = pair.collection or f"{detail.lower()}s"
        message = (
            f"{place} writes {detail} without the lock of its {header}, which {other} takes before "
            f"it writes {detail}"
        )
        cure = (
            f'declare the document, @document(parts=("{part}",)) at class {header}, and write under '
            f"its lock: with session.locked_document({header}, ident) as {header.lower()}:"
        )
        if pair.collection is None:
            cure += f" (class {header} needs the relationship {part})"
        return self._finding(any(locked.values()), message, (place, other), cure, count)
