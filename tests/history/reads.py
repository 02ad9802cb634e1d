"""What the reads and writes of single items show, without a graph."""

from __future__ import annotations

from collections.abc import Iterator

import networkx as nx

from tests.history.anomalies import Anomaly, Name
from tests.history.record import FIRST, History, Item, Outcome, Read, Transaction, Version, Write


def found_in_reads(history: History) -> Iterator[Anomaly]:
    """Each read of a transaction that counts, by itself and beside its others."""
    orders = _orders(history)
    for reader in history.committed:
        for read in reader.operations:
            if isinstance(read, Read):
                yield from _source(history, reader, read)
        yield from _repeated(reader)
        yield from _fractured(history, reader, orders)
    yield from _lost_updates(history)


def _source(history: History, reader: Transaction, read: Read) -> Iterator[Anomaly]:
    """Whose write it was, if anybody's, and whether it counts."""
    if read.version == FIRST or read.version.writer == reader.number:
        return
    what = f"{reader} read {read.item} as {read.version}"
    writer = history.transactions.get(read.version.writer)
    written = [one.version for one in writer.writes if one.item == read.item] if writer else []
    if writer is None or read.version not in written:
        yield Anomaly(Name.GARBAGE_READ, what)
    elif writer.outcome is Outcome.ABORTED:
        yield Anomaly(Name.G1A, what)
    elif read.version != written[-1]:
        yield Anomaly(Name.G1B, f"{what}, which {written[-1]} replaced")


def _repeated(reader: Transaction) -> Iterator[Anomaly]:
    """A read tells what the last read, or the transaction's own last write, has told."""
    known: dict[Item, Read | Write] = {}
    for one in reader.operations:
        before = known.get(one.item)
        if isinstance(one, Read) and before is not None and one.version != before.version:
            name = Name.P2 if isinstance(before, Read) else Name.INTERNAL
            what = f"{reader} read {one.item} as {one.version}, and had {before.version} before"
            yield Anomaly(name, what)
        known[one.item] = one


def _fractured(
    history: History, reader: Transaction, orders: dict[Item, nx.DiGraph[Version]]
) -> Iterator[Anomaly]:
    """Of a writer that was seen in one place of a document, another place is older."""
    seen = history.seen[reader.number]
    for item, version in seen.items():
        for other, written in history.installed.get(version.writer, {}).items():
            if other.document != item.document or other not in seen or other == item:
                continue
            order = orders[other]
            if seen[other] != written.version and (
                order.has_node(seen[other]) and nx.has_path(order, seen[other], written.version)
            ):
                what = f"{reader} saw {version} in {item}, and in {other} still {seen[other]}"
                yield Anomaly(Name.FRACTURED, what)


def _orders(history: History) -> dict[Item, nx.DiGraph[Version]]:
    """Of each item, which version has replaced which."""
    orders: dict[Item, nx.DiGraph[Version]] = {}
    for installed in history.installed.values():
        for item in installed:
            orders.setdefault(item, nx.DiGraph())
    for transaction in history.transactions.values():  # an aborted one may have been read
        for write in transaction.writes:
            order = orders.get(write.item)
            if order is not None:
                order.add_node(write.version)
                if write.over is not None:
                    order.add_edge(write.over, write.version)
    return orders


def _lost_updates(history: History) -> Iterator[Anomaly]:
    """Two have replaced the same version, which both had read."""
    replaced: dict[tuple[Item, Version], int] = {}
    for number, installed in history.installed.items():
        for item, write in installed.items():
            if write.over is None or history.seen[number].get(item) != write.over:
                continue
            other = replaced.setdefault((item, write.over), number)
            if other != number:
                what = f"T{other} and T{number} have both replaced {write.over} of {item}"
                yield Anomaly(Name.P4, what)
