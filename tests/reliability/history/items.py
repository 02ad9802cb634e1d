"""Anomalies in the reads and writes of single items, without a graph, by their names in the literature."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from tests.reliability.history.record import (
    ABSENT,
    FIRST,
    History,
    Item,
    Outcome,
    Read,
    Transaction,
    Version,
    Write,
)

# --------------------------------------------------------------------------------------------------
# The names of anomalies in a history, as the literature has them.
#
# Adya, "Weak Consistency" (1999): G0 to G2; Berenson and others, "A Critique of ANSI SQL Isolation
# Levels" (1995): P0 to P4, A5A, A5B; Bailis and others, "Scalable Atomic Visibility with RAMP
# Transactions" (2014): fractured read; Kingsbury and Alvaro, "Elle" (2020): garbage read, internal,
# and -realtime for what is wrong only because one transaction had ended before the other began;
# Jepsen: lost write.


class Name(enum.Enum):
    GARBAGE_READ = "garbage read"  # of a version that nobody wrote
    INTERNAL = "internal"  # a transaction does not see its own last write
    P0 = "P0 dirty write"  # over uncommitted data of another transaction
    P1 = "P1 dirty read"  # of uncommitted data of another transaction, which commits later
    G1A = "G1a aborted read"
    G1B = "G1b intermediate read"
    P2 = "P2 non-repeatable read"
    P3 = "P3 phantom"  # present, then missing, or the other way round
    DOCUMENT = "non-repeatable document"  # two reads of a document differ, as P2 or P3 reports
    FRACTURED = "fractured read"  # a part of a transaction's writes to a document
    P4 = "P4 lost update"
    LOST_WRITE = "lost write"  # committed, but missing from the final state
    G0 = "G0 write cycle"
    G1C = "G1c circular information flow"
    G_SINGLE = "G-single read skew (A5A)"
    G2_ITEM = "G2-item write skew (A5B)"
    G2 = "G2 write skew by a phantom"
    G1C_REALTIME = "G1c-realtime"
    G_SINGLE_REALTIME = "G-single-realtime stale read"
    G2_REALTIME = "G2-realtime"


class Anomaly(NamedTuple):
    name: Name
    what: str  # which transactions, which item

    def __str__(self) -> str:
        return f"{self.name.value}: {self.what}"


# --------------------------------------------------------------------------------------------------
# For each item, which version replaced which.


class Orders:
    """The versions of all items, including those rolled back: transactions may have read them."""

    def __init__(self, history: History) -> None:
        self._before: dict[tuple[Item, Version], Version] = {}
        for transaction in history.transactions.values():
            for write in transaction.writes:
                if write.over not in (None, ABSENT):
                    self._before[write.item, write.version] = write.over
        self._rank = self._ranks()

    def older(self, item: Item, one: Version, other: Version) -> bool:
        """Return whether the first version precedes the second."""
        ranks = self._rank.get((item, one)), self._rank.get((item, other))
        if ranks[0] is None or ranks[1] is None or ranks[0] >= ranks[1]:
            return False
        at = other
        for _ in range(ranks[1] - ranks[0]):
            at = self._before[item, at]
        return at == one

    def _ranks(self) -> dict[tuple[Item, Version], int]:
        """Count the versions before each version; those that replace each other in a circle have no rank."""
        after: dict[tuple[Item, Version], list[Version]] = {}
        for (item, version), over in self._before.items():
            after.setdefault((item, over), []).append(version)
        ranks = dict.fromkeys(after.keys() - self._before.keys(), 0)
        front = deque(ranks)
        while front:
            place = front.popleft()
            for version in after.get(place, ()):
                ranks[place[0], version] = ranks[place] + 1
                front.append((place[0], version))
        return ranks


# --------------------------------------------------------------------------------------------------
# Anomalies in the reads of single items, without a graph.


def found_in_reads(history: History) -> Iterator[Anomaly]:
    """Yield the anomalies of each counting transaction's reads, single and compared."""
    orders = Orders(history)
    for reader in history.committed:
        for read in reader.operations:
            if isinstance(read, Read):
                yield from _source(history, reader, read)
        yield from _repeated(history, reader)
        yield from _fractured(history, reader, orders)


def _source(history: History, reader: Transaction, read: Read) -> Iterator[Anomaly]:
    """Yield a read of a write that does not count, or that no transaction made."""
    if read.version in (FIRST, ABSENT) or read.version.writer == reader.number:
        return
    writer = history.transactions.get(read.version.writer)
    if writer and _is_last(history, read) and not _early(reader, writer):
        return
    what = f"{reader} read {read.item} as {read.version}"
    written = [one.version for one in writer.writes if one.item == read.item] if writer else []
    if writer is None or read.version not in written:
        yield Anomaly(Name.GARBAGE_READ, what)
    elif writer.outcome is Outcome.ABORTED:
        yield Anomaly(Name.G1A, what)
    elif read.version != written[-1]:
        yield Anomaly(Name.G1B, f"{what}, which {written[-1]} replaced")
    elif _early(reader, writer):
        yield Anomaly(Name.P1, f"{what}, and ended before {writer} was committed")


def _early(one: Transaction, other: Transaction) -> bool:
    """Return whether the writer ended before the other was about to commit."""
    return other.committing is not None and one.ended < other.committing


def _is_last(history: History, read: Read) -> bool:
    write = history.installed.get(read.version.writer, {}).get(read.item)
    return write is not None and write.version == read.version


def _repeated(history: History, reader: Transaction) -> Iterator[Anomaly]:
    """Yield each read that differs from the previous read, or from the transaction's own last write."""
    known: dict[Item, Read | Write] = {}
    changed: dict[int, list[Item]] = {}
    for one in reader.operations:
        before = known.get(one.item)
        if isinstance(one, Read) and (name := _difference(history, reader, one, before)):
            had = f"had {before.version}" if before else "nothing"
            what = f"{reader} read {one.item} as {one.version}, and {had} before"
            yield Anomaly(name, what)
            changed.setdefault(one.item.document, []).append(one.item)
        known[one.item] = one
    for document, items in changed.items():
        if sum(item.document == document for item in known) > 1:
            what = f"{reader} read {document} twice, and found another {', '.join(map(str, items))}"
            yield Anomaly(Name.DOCUMENT, what)


def _difference(
    history: History, reader: Transaction, read: Read, before: Read | Write | None
) -> Name | None:
    if before is None:
        return Name.INTERNAL if read.version.writer == reader.number else None
    if read.version == before.version:
        return None
    gone = history.is_gone(read.item, read.version)
    was_gone = history.is_gone(read.item, before.version)
    if gone and was_gone and ABSENT in (read.version, before.version):
        return None  # it is open which deletion each of them met
    if isinstance(before, Write) or read.version.writer == reader.number:
        return Name.INTERNAL
    return Name.P2 if gone == was_gone else Name.P3


def _fractured(history: History, reader: Transaction, orders: Orders) -> Iterator[Anomaly]:
    """Yield each transaction that saw a writer in one place of a document, and an older version in another place."""
    seen = history.seen[reader.number]
    for item, version in seen.items():
        for other, written in history.installed.get(version.writer, {}).items():
            if other.document != item.document or other == item:
                continue
            if orders.older(other, seen.get(other, written.version), written.version):
                what = f"{reader} saw {version} in {item}, and in {other} still {seen[other]}"
                yield Anomaly(Name.FRACTURED, what)


# --------------------------------------------------------------------------------------------------
# Anomalies in the writes of single items, without a graph.


def found_in_writes(history: History) -> Iterator[Anomaly]:
    """Yield the wrong replacements of each counting transaction, and the writes missing at the end."""
    for writer in history.committed:
        for write in writer.writes:
            yield from _dirty(history, writer, write)
    yield from _lost_updates(history)
    yield from _not_there_in_the_end(history)


def _dirty(history: History, writer: Transaction, write: Write) -> Iterator[Anomaly]:
    """Yield each replacement of an uncommitted version."""
    over = write.over
    if over in (None, FIRST, ABSENT) or over.writer == writer.number:
        return
    what = f"{writer} replaced {over} of {write.item}"
    other = history.transactions.get(over.writer)
    written = [one.version for one in other.writes if one.item == write.item] if other else []
    if other is None or over not in written:
        yield Anomaly(Name.GARBAGE_READ, f"{what}, which nobody wrote")
    elif (
        other.outcome is Outcome.ABORTED
        or over != written[-1]
        or (other.committing is not None and writer.ended < other.committing)
    ):
        yield Anomaly(Name.P0, f"{what}, which was not committed")


def _lost_updates(history: History) -> Iterator[Anomaly]:
    """Yield each version that two transactions replaced."""
    replaced: dict[tuple[Item, Version], int] = {}
    for number, installed in history.installed.items():
        for item, write in installed.items():
            if write.over in (None, ABSENT):
                continue
            other = replaced.setdefault((item, write.over), number)
            if other != number:
                what = f"T{other} and T{number} have both replaced {write.over} of {item}"
                yield Anomaly(Name.P4, what)


def _not_there_in_the_end(history: History) -> Iterator[Anomaly]:
    """Yield each counting write that is neither in the final state nor replaced by another."""
    if history.final is None:
        return
    left = history.seen[history.final.number]
    writes: dict[Item, list[Write]] = {}
    for installed in history.installed.values():
        for item, write in installed.items():
            writes.setdefault(item, []).append(write)
    perhaps = {
        write.item
        for one in history.transactions.values()
        for write in one.writes
        if write.gone and one.outcome is Outcome.UNKNOWN
    }
    for item, each in writes.items():
        if left[item] == ABSENT and item in perhaps:
            continue
        replaced = {write.over for write in each}
        last = [write for write in each if write.version not in replaced]
        lost = [write for write in last if not _is(left[item], write)]
        if len(lost) < len(last) and not replaced.isdisjoint((None, ABSENT)):
            continue  # their order is unknown, and one of them is in the final state
        for write in lost:
            what = f"{write.version} of {item} is not in the final state, which has {left[item]}"
            yield Anomaly(Name.LOST_WRITE, what)


def _is(found: Version, write: Write) -> bool:
    return found == write.version or (found == ABSENT and write.gone)
