"""The rules: they are told what a transaction does, and count what they have found."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, Final, NamedTuple

from . import cures
from .data_flow import is_computed
from .findings import AuditFinding, Severity
from .places import NOWHERE, Place, Places
from .rows import Header, Row, entity_name, header_rows, short_name
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


_MOST_TABLES: Final = 500
_MOST_PLACES: Final = 50  # for each table


class LostUpdate(Rule):
    """Certain where the source shows that the new value depends on the old one."""

    code = "lost-update"

    def __init__(self) -> None:
        super().__init__()
        self._reads: OrderedDict[str, dict[Place, None]] = OrderedDict()

    def wrote(self, transaction: Transaction, write: Write) -> None:
        read = write.read
        if write.kind != "update" or read is None or _is_protected(transaction, write, read):
            return
        attributes = tuple(write.changed)
        computed = tuple(name for name in attributes if write.depends_on(read, name))
        names = computed or attributes
        if names:
            place = write.assigned.get(names[0], write.places)[0]
            key = (write.row.entity, ", ".join(names), str(read.place), str(place))
            self._note(transaction, (*key, str(write.places[0])), certain=bool(computed))

    def read_table(self, transaction: Transaction, tables: frozenset[str], place: Place) -> None:
        """Remember the line, for an UPDATE whose values are computed from what it has read."""
        for table in tables:
            places = self._reads.setdefault(table, {})
            if len(places) < _MOST_PLACES:
                places[place] = None
            if len(self._reads) > _MOST_TABLES:
                self._reads.popitem(last=False)

    def updated(
        self, transaction: Transaction, update: UpdateSent, row: Row | None, places: Places
    ) -> None:
        table = str(update.table.key)
        locked = table in transaction.tables_locked or row in transaction.locks
        protected = transaction.has_wide_lock or transaction.finds_conflicts
        if update.conditions or locked or protected:
            return  # with other conditions than the key it is compare and set
        for read in self._reads.get(table, ()):
            names = ", ".join(_computed(update, places, read))
            if names:
                place = str(places[0])
                self._note(transaction, (table, names, str(read), place, place), certain=True)
                return

    def _note(self, transaction: Transaction, key: tuple[str, ...], *, certain: bool) -> None:
        def end(committed: bool) -> None:
            alone = transaction.changes_schema
            self.tally.add((*key, certain and committed and not alone))

        transaction.later(end)

    def findings(self) -> Iterator[AuditFinding]:
        for (entity, names, read, assigned, flushed, certain), count in self.tally:
            if not certain and (entity, names, read, assigned, flushed, True) in self.tally:
                continue
            name = short_name(entity)
            what = f"{read} reads the row without a lock, {assigned} writes it"
            if certain:
                message = f"{name}.{names} is computed from what was read: {what}; of two transactions at once, one change is lost"
            else:
                message = f"{name}.{names} is replaced: {what}; what another transaction has written in between is lost"
            cure = cures.lost_update(name, names, read, computed=certain)
            yield self._finding(certain, message, (read, assigned, flushed), cure, count)


def _is_protected(transaction: Transaction, write: Write, read: Read) -> bool:
    """Return whether no change of another can get lost."""
    if write.mapper.version_id_col is not None:
        return True
    headers = frozenset(row for _, row in header_rows(write.state))
    if transaction.protects(write.row, read, headers):
        return True
    tables = {getattr(table, "key", None) for table in write.mapper.tables}
    return not tables.isdisjoint(transaction.tables_locked)


def _computed(update: UpdateSent, places: Places, read: Place) -> Iterator[str]:
    """Yield the columns whose new values are computed from what that line has read."""
    keys = frozenset(column.key for column in update.table.primary_key)
    columns = frozenset(update.table.columns.keys())
    for name in update.values:
        if is_computed(name, places, read, columns, keys):
            yield name


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
        is_mapped = pair.collection is not None
        cure = cures.detail_without_header(header, part, place, is_mapped=is_mapped)
        return self._finding(any(locked.values()), message, (place, other), cure, count)


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
            cure = cures.stale_after_lock(name, locked)
            yield self._finding(certain, message, (before, locked), cure, count)


class LockWithoutEffect(Rule):
    """Always certain: the text that was sent tells."""

    code = "lock-without-effect"

    def without_effect(self, sent: Sent, database: str, reason: str, place: Place) -> None:
        self.tally.add((", ".join(sorted(sent.tables)), database, reason, str(place)))

    def findings(self) -> Iterator[AuditFinding]:
        for (tables, database, reason, place), count in self.tally:
            of = f" of {tables}" if tables else ""
            message = f"the lock{of} at {place} has no effect on {database}: {reason}"
            yield self._finding(True, message, (place,), cures.lock_without_effect(), count)


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
            found = self._finding(True, message, key, cures.long_hold(locked), count)
            yield replace(found, severity="warning")
