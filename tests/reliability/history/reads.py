"""Anomalies in the reads of single items, without a graph."""

from __future__ import annotations

from collections.abc import Iterator

from tests.reliability.history.anomalies import Anomaly, Name
from tests.reliability.history.orders import Orders
from tests.reliability.history.record import (
    ABSENT,
    FIRST,
    History,
    Item,
    Outcome,
    Read,
    Transaction,
    Write,
)


def found_in_reads(history: History) -> Iterator[Anomaly]:
    """Each read of a transaction that counts, by itself and beside its others."""
    orders = Orders(history)
    for reader in history.committed:
        for read in reader.operations:
            if isinstance(read, Read):
                yield from _source(history, reader, read)
        yield from _repeated(history, reader)
        yield from _fractured(history, reader, orders)


def _source(history: History, reader: Transaction, read: Read) -> Iterator[Anomaly]:
    """Find a read of a write that does not count, or that nobody made."""
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
    """Return whether the one had ended before the other was about to commit."""
    return other.committing is not None and one.ended < other.committing


def _is_last(history: History, read: Read) -> bool:
    write = history.installed.get(read.version.writer, {}).get(read.item)
    return write is not None and write.version == read.version


def _repeated(history: History, reader: Transaction) -> Iterator[Anomaly]:
    """A read tells what the last read, or the transaction's own last write, has reported."""
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
        return None  # since when it is not there was left open
    if isinstance(before, Write) or read.version.writer == reader.number:
        return Name.INTERNAL
    return Name.P2 if gone == was_gone else Name.P3


def _fractured(history: History, reader: Transaction, orders: Orders) -> Iterator[Anomaly]:
    """Of a writer that was seen in one place of a document, another place is older."""
    seen = history.seen[reader.number]
    for item, version in seen.items():
        for other, written in history.installed.get(version.writer, {}).items():
            if other.document != item.document or other == item:
                continue
            if orders.older(other, seen.get(other, written.version), written.version):
                what = f"{reader} saw {version} in {item}, and in {other} still {seen[other]}"
                yield Anomaly(Name.FRACTURED, what)
