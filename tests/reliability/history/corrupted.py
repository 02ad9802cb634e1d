"""A history that was right, with one thing in it made wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tests.reliability.history.record import (
    ABSENT,
    FIRST,
    Outcome,
    Read,
    Transaction,
    Version,
    Write,
)

Corrupted = tuple[str, list[Transaction]]


def with_another_read(transactions: Sequence[Transaction]) -> Iterator[Corrupted]:
    """One read tells another version of its item: an older one, a newer one, or that it is gone."""
    for number, one in _committed(transactions):
        for place, read in enumerate(one.operations):
            if isinstance(read, Read):
                for version in _versions(transactions, read):
                    changed = Read(read.item, version)
                    yield f"{one}: {changed}", _with(transactions, number, place, changed)


def with_a_write_dropped(transactions: Sequence[Transaction]) -> Iterator[Corrupted]:
    """One transaction has not written one of its items, which others have seen."""
    for number, one in _committed(transactions):
        for item, write in one.installed().items():
            if write.gone and write.over == ABSENT:
                continue  # nobody has seen it come and go
            operations = [
                each for each in one.operations if isinstance(each, Read) or each.item != item
            ]
            yield f"{one}: no {item}", _exchanged(transactions, number, operations)


def with_a_base_twice(transactions: Sequence[Transaction]) -> Iterator[Corrupted]:
    """One has replaced what another had replaced before."""
    bases = {
        (write.item, write.version): write.over
        for _, one in _committed(transactions)
        for write in one.installed().values()
    }
    for number, one in _committed(transactions):
        for place, write in enumerate(one.operations):
            if isinstance(write, Write) and write.over is not None:
                base = bases.get((write.item, write.over))
                if base is not None and write.over.writer != one.number:
                    changed = write._replace(over=base)
                    yield f"{one}: {changed}", _with(transactions, number, place, changed)


def _committed(transactions: Sequence[Transaction]) -> Iterator[tuple[int, Transaction]]:
    for number, one in enumerate(transactions):
        if one.outcome is Outcome.COMMITTED:
            yield number, one


def _versions(transactions: Sequence[Transaction], read: Read) -> Iterator[Version]:
    """The other versions that a reader may be given."""
    known = {FIRST, ABSENT} if read.item.part else {FIRST}
    for one in transactions:
        known |= {w.version for w in one.writes if w.item == read.item and not w.gone}
    yield from sorted(known - {read.version})


def _with(
    transactions: Sequence[Transaction], number: int, place: int, operation: Read | Write
) -> list[Transaction]:
    operations = list(transactions[number].operations)
    operations[place] = operation
    return _exchanged(transactions, number, operations)


def _exchanged(
    transactions: Sequence[Transaction], number: int, operations: list[Read | Write]
) -> list[Transaction]:
    changed = list(transactions)
    changed[number] = replace(changed[number], operations=operations)
    return changed
