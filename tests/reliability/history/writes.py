"""Anomalies in the writes of single items, without a graph."""

from __future__ import annotations

from collections.abc import Iterator

from tests.reliability.history.anomalies import Anomaly, Name
from tests.reliability.history.record import (
    ABSENT,
    FIRST,
    History,
    Item,
    Outcome,
    Transaction,
    Version,
    Write,
)


def found_in_writes(history: History) -> Iterator[Anomaly]:
    """Find wrong replacements by each transaction that counts, and what is missing in the end."""
    for writer in history.committed:
        for write in writer.writes:
            yield from _dirty(history, writer, write)
    yield from _lost_updates(history)
    yield from _not_there_in_the_end(history)


def _dirty(history: History, writer: Transaction, write: Write) -> Iterator[Anomaly]:
    """It has replaced what was not committed."""
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
    """Two have replaced the same version."""
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
    """A write that counts is neither in the final state nor replaced by another."""
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
            continue  # their order is not known, and one of them is there
        for write in lost:
            what = f"{write.version} of {item} is not in the final state, which has {left[item]}"
            yield Anomaly(Name.LOST_WRITE, what)


def _is(found: Version, write: Write) -> bool:
    return found == write.version or (found == ABSENT and write.gone)
