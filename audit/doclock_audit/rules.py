"""The rules: they observe transactions, and count findings."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from sqlalchemy import Table

from . import cures
from .data_flow import Column, is_computed
from .findings import AuditFinding, Severity
from .places import NOWHERE, Place, Places, is_of_migration
from .rows import (
    Header,
    Row,
    attributes_of,
    entity_name,
    entity_of_table,
    header_rows,
    short_name,
)
from .sent import Sent, Value, WriteSent, plain_name
from .source import reaches_driver
from .transactions import Read, RowLock, Transaction, Write

K = TypeVar("K")
V = TypeVar("V")
HeaderRows = Iterable[tuple[Header, Row]]
Rows = Sequence[Mapping[str, Any]]

LIMIT: Final = 2_000
"""The number of different keys in a tally; further keys are counted together."""


class Tally:
    """Counts by key; a key is a tuple of texts and numbers, so that it can be sent to another process."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._counts: dict[tuple[Any, ...], int] = {}
        self._limit = limit
        self.left_out = 0
        """The number of observations beyond the limit."""

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

    def strongest(self) -> Iterator[tuple[tuple[Any, ...], bool, int]]:
        """Yield each key without its certainty, the certainty, and the count; prefer the certain of two."""
        for (*key, certain), times in self:
            if certain or (*key, True) not in self:
                yield tuple(key), certain, times

    def export(self) -> list[Any]:
        """Return the counts as lists, for ``merge()`` in another process."""
        return [self.left_out, *([*key, times] for key, times in self)]

    def merge(self, exported: Iterable[Any]) -> None:
        """Add the counts of another process."""
        left_out, *rows = exported
        self.left_out += left_out
        for *key, times in rows:
            self.add(tuple(key), times)


class Rule:
    """The rule for one code of findings.  Listeners call the methods that are named after events."""

    code: ClassVar[str]

    def __init__(self) -> None:
        self.tally = Tally()
        self.is_of_tests: Callable[[str], bool] | None = None
        """Return whether a file contains tests: no concurrent caller runs its lines."""

    def is_test(self, place: Place) -> bool:
        """Return whether a line belongs to a test."""
        return self.is_of_tests is not None and self.is_of_tests(place.file)

    def without_tests(self, places: Places) -> Places:
        """Return the line and its callers, except callers in tests."""
        if self.is_of_tests is None:
            return places
        return (places[0], *(one for one in places[1:] if not self.is_test(one)))

    def count_at_end(
        self, transaction: Transaction, key: tuple[Any, ...], certain: Callable[[bool], bool]
    ) -> None:
        """Count the key when the transaction ends.

        :param certain: called at the end, with whether the transaction committed.
        """
        transaction.later(lambda committed: self.tally.add((*key, certain(committed))))

    def export(self) -> Any:
        """Return the counts, as lists, texts and numbers."""
        return self.tally.export()

    def merge(self, exported: Any) -> None:
        """Add the counts of the same rule in another process."""
        self.tally.merge(exported)

    @property
    def left_out(self) -> int:
        """The number of observations beyond the limit."""
        return self.tally.left_out

    def findings(self) -> Iterator[AuditFinding]:
        """Yield the findings, each place of the program once."""
        raise NotImplementedError

    def _finding(
        self, certain: bool, message: str, sites: tuple[str, ...], cure: str, count: int
    ) -> AuditFinding:
        if self.is_of_tests is not None:
            files = (one.rpartition(":")[0] for one in sites[:2])
            certain = certain and not any(map(self.is_of_tests, files))
        severity: Severity = "error" if certain else "warning"
        places = tuple(dict.fromkeys(site for site in sites if site != str(NOWHERE[0])))
        return AuditFinding(self.code, severity, certain, message, places, cure, count)


def keep_last(values: OrderedDict[K, V], key: K, value: V, number: int) -> V:
    """Put the value at the end, keep at most this many values, and return the value."""
    values.pop(key, None)
    values[key] = value
    if len(values) > number:
        values.popitem(last=False)
    return value


MOST_TABLES: Final = 500
_MOST_PLACES: Final = 50  # for each table


class LostUpdate(Rule):
    """Certain if the source shows that the new value depends on the old one."""

    code = "lost-update"

    def __init__(self) -> None:
        super().__init__()
        self._reads: OrderedDict[str, dict[Place, int]] = OrderedDict()

    def wrote(self, transaction: Transaction, write: Write) -> None:
        if write.kind == "insert" and write.row in transaction.deleted:  # the INSERT overwrites it
            table: Any = write.mapper.local_table
            values = tuple(Value(name, frozenset({name})) for name in write.changed)
            overwrites = WriteSent(table, (), frozenset(), None)
            self.updated(transaction, overwrites, values, write.row, write.places)
        read = write.read
        if write.kind == "update" and read and not _is_protected(transaction, write, read):
            self._changed(transaction, write, read)

    def _changed(self, transaction: Transaction, write: Write, read: Read) -> None:
        attributes = [*write.changed]
        if write.refreshed:
            attributes = [one for one in attributes if not write.is_fresh(one, transaction)]
        if self.is_of_tests is not None:
            assigned = {name: self.without_tests(of) for name, of in write.assigned.items()}
            write = replace(write, assigned=assigned)
        computed = [name for name in attributes if write.depends_on(read, name)]
        names = computed or attributes
        if names:
            place = write.assigned.get(names[0], write.places)[0]
            seen = computed and not reaches_driver((*read.places, *write.places))
            of = write.row.entity, ", ".join(names)
            self._note(transaction, *of, read.place, place, write.places[0], certain=bool(seen))

    def read_table(self, sent: Sent, places: Places, number: int) -> None:
        """Remember the line, for an UPDATE that computes its values from the rows read."""
        place = places[0]
        for table in sent.tables:
            known = self._reads.get(table)
            if known is None:
                known = keep_last(self._reads, table, {}, MOST_TABLES)
            if place in known or len(known) < _MOST_PLACES:
                known[place] = number

    def updated(
        self,
        transaction: Transaction,
        update: WriteSent,
        values: tuple[Value, ...],
        row: Row | None,
        places: Places,
    ) -> None:
        if update.conditions or transaction.has_wide_lock or transaction.protection.finds_conflicts:
            return  # with conditions besides the key, it is compare-and-set
        table = plain_name(update.table)
        lock = None if row is None else transaction.locks.get(row)
        for read, number in self._reads.get(table, {}).items():
            locked = lock is not None and lock.is_before(number)
            if locked or transaction.protects_table(table, number):
                continue
            names = ", ".join(_computed(update, values, places, read))
            if names:
                of, seen = entity_of_table(update.table), not reaches_driver((read, *places))
                self._note(transaction, of, names, read, places[0], places[0], certain=seen)
                return

    def _note(
        self, transaction: Transaction, entity: str, names: str, *places: Place, certain: bool
    ) -> None:
        # Examine further only findings that are otherwise certain.
        alone = certain and (is_of_migration() or any(map(self.is_test, places[:2])))
        proves = certain and not alone
        self.count_at_end(
            transaction,
            (entity, names, *map(str, places)),
            lambda committed: proves and committed and not transaction.changes_schema,
        )

    def findings(self) -> Iterator[AuditFinding]:
        columns: dict[tuple[Any, ...], dict[str, int]] = {}  # each finding's, with its count
        for (entity, names, *places, certain), count in self.tally:
            known = columns.setdefault((short_name(entity), *places, certain), {"": 0})
            known[""] += count
            known.update(dict.fromkeys(names.split(", "), 0))
        for (name, read, assigned, flushed, certain), found in columns.items():
            if not certain and (name, read, assigned, flushed, True) in columns:
                continue
            count, names = found.pop(""), ", ".join(found)
            what = f"{read} reads the row without a lock, {assigned} writes it"
            if certain:
                message = f"{name}.{names} is computed from an unlocked read: {what}; of two concurrent transactions, one loses its change"
            else:
                message = f"{name}.{names} is overwritten: {what}; a change that another transaction makes in between is lost"
            cure = cures.lost_update(name, names, read, computed=certain)
            yield self._finding(certain, message, (read, assigned, flushed), cure, count)


def _is_protected(transaction: Transaction, write: Write, read: Read) -> bool:
    if write.mapper.version_id_col is not None:
        return True
    headers = {row for _, row in header_rows(write.state)} if transaction.locks else set()
    if transaction.protects(write.row, read, headers):
        return True
    if write.row in transaction.stale:
        return True  # another rule reports it
    return bool(transaction.tables_locked) and any(
        transaction.protects_table(plain_name(table), read.number)
        for table in write.mapper.tables
        if isinstance(table, Table)
    )


def _computed(
    update: WriteSent, values: tuple[Value, ...], places: Places, read: Place
) -> Iterator[str]:
    by_column = attributes_of(update.table)
    every = frozenset().union(*by_column.values())
    for name, given_as in values:
        own = by_column.get(name, frozenset({name}))
        if is_computed(Column(name, given_as | own, every - own), places, read):
            yield name


class _Pair(NamedTuple):
    header: str
    detail: str
    collection: str | None


class DetailWithoutHeader(Rule):
    """Certain if the header depends on its details.

    It depends on them if a transaction that locked the header also writes it, and read its details or has
    a relationship that deletes removed details.  A detail whose own row is locked is not a finding.
    """

    code = "detail-without-header"

    def wrote(self, transaction: Transaction, write: Write) -> None:
        own, headers = transaction.locks.get(write.row), [*header_rows(write.state)]
        if headers and (own is None or own.by_write):
            self.inserted(transaction, entity_name(write.mapper), headers, write.place)

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
                self.tally.add(("unlocked", *pair, str(place), reaches_driver((place,))))
            elif not lock.by_write:
                self._note_locked(transaction, pair, header, row, lock)

    def _note_locked(
        self, transaction: Transaction, pair: _Pair, header: Header, row: Row, lock: RowLock
    ) -> None:
        def depends(_: bool) -> bool:
            belongs = header.owns or pair.detail in transaction.read_after_lock
            return belongs and row in transaction.updated

        self.count_at_end(transaction, ("locked", *pair, str(lock.place)), depends)

    def findings(self) -> Iterator[AuditFinding]:
        locked: dict[_Pair, dict[str, bool]] = defaultdict(dict)
        for (kind, *pair, place, depends), _ in self.tally:
            if kind == "locked":
                places = locked[_Pair(*pair)]
                places[place] = depends or places.get(place, False)
        for (kind, *of, place, unseen), count in self.tally:
            if kind == "unlocked" and locked.get(_Pair(*of)):
                certain = not unseen and any(locked[_Pair(*of)].values())
                yield self._judge(_Pair(*of), place, locked[_Pair(*of)], count, certain=certain)

    def _judge(
        self, pair: _Pair, place: str, locked: dict[str, bool], count: int, *, certain: bool
    ) -> AuditFinding:
        header, detail = short_name(pair.header), short_name(pair.detail)
        other = max(locked, key=lambda one: locked[one])
        part = pair.collection or f"{detail.lower()}s"
        message = (
            f"{place} writes {detail} without the lock on its {header}; {other} takes that lock "
            f"before it writes {detail}"
        )
        is_mapped = pair.collection is not None
        cure = cures.detail_without_header(header, part, place, is_mapped=is_mapped)
        return self._finding(certain, message, (place, other), cure, count)


class StaleAfterLock(Rule):
    """Certain if the transaction then writes a value that depends on the old values."""

    code = "stale-after-lock"

    def kept_values(self, transaction: Transaction, row: Row, before: Read, read: Read) -> None:
        """Note the two reads; the end of the transaction shows whether they matter."""
        transaction.stale[row] = before
        self.count_at_end(
            transaction,
            (row.entity, str(before.place), str(read.place)),
            lambda committed: committed and row in transaction.computed_from_stale,
        )

    def wrote(self, transaction: Transaction, write: Write) -> None:
        before = transaction.stale.get(write.row)
        if before is None or write.kind != "update":
            return
        names = (name for name in write.changed if not write.is_fresh(name, transaction))
        if any(write.depends_on(before, name) for name in names):
            transaction.computed_from_stale |= {write.row}

    def findings(self) -> Iterator[AuditFinding]:
        for (entity, before, locked), certain, count in self.tally.strongest():
            name = short_name(entity)
            then = "and is then written" if certain else "until it is refreshed"
            message = (
                f"{name} keeps the values that {before} read, {then}: {locked} locks its row, but "
                "SQLAlchemy does not refresh a loaded object"
            )
            cure = cures.stale_after_lock(name, locked)
            yield self._finding(certain, message, (before, locked), cure, count)


class LockWithoutEffect(Rule):
    """Certain if the transaction then changes rows of the table, as the sent SQL shows."""

    code = "lock-without-effect"

    def without_effect(
        self, transaction: Transaction, sent: Sent, database: str, reason: str, place: Place
    ) -> None:
        self.count_at_end(
            transaction,
            (", ".join(sorted(sent.tables)), database, reason, str(place)),
            lambda _: bool(transaction.written & (sent.tables or transaction.written)),
        )

    def findings(self) -> Iterator[AuditFinding]:
        for (tables, database, reason, place), certain, count in self.tally.strongest():
            of = f" of {tables}" if tables else ""
            message = f"the lock{of} at {place} has no effect on {database}: {reason}"
            yield self._finding(certain, message, (place,), cures.lock_without_effect(), count)


HOLD_LIMIT: Final = 0.2
"""Seconds without a statement that are not reported."""


class LongHold(Rule):
    """Certain, but only a warning: nothing is lost, but others wait.

    Even without a lock, a transaction keeps a connection of the pool, and makes the server keep old rows.
    The next statement does not show why it came late, so the report names the place where the audit saw
    the wait.
    """

    code = "long-hold"

    def __init__(self, hold_limit: float = HOLD_LIMIT) -> None:
        super().__init__()
        self._hold_limit = hold_limit
        self._longest: dict[tuple[str, ...], float] = {}

    def was_idle(
        self, transaction: Transaction, seconds: float, place: Place, *, seen: bool
    ) -> None:
        lock = transaction.first_lock
        is_no_wait = not seen or transaction.changes_schema or self.is_test(place)
        if seconds < self._hold_limit or (lock is None and is_no_wait):
            return
        key = ("" if lock is None else str(lock), str(place), "under" if seen else "before")
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
            locked, place, where = key
            seconds = f"up to {self._longest[key]:.1f} s while no statement runs, {where} {place}"
            if locked:
                message = f"the lock taken at {locked} is held for {seconds}"
                cure = cures.long_hold(locked)
            else:
                message = f"a transaction stays open for {seconds}"
                cure = cures.idle_transaction(place)
            sites = (locked, place) if locked else (place,)
            found = replace(self._finding(True, message, sites, cure, count), severity="warning")
            yield found if locked else replace(found, code="idle-transaction")
