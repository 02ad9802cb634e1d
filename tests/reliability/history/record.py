"""The history that transactions make together: which of them count, and which version follows which."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tests.reliability.history.absence import never_there, resolved
from tests.reliability.history.transactions import (
    ABSENT,
    FIRST,
    NOBODYS,
    Item,
    Outcome,
    Read,
    Transaction,
    Version,
    Write,
)

__all__ = [
    "ABSENT",
    "FIRST",
    "History",
    "Item",
    "Outcome",
    "Read",
    "Transaction",
    "Version",
    "Write",
]

_FINAL = -1  # the number of who reads the final state


class History:
    """The transactions, and what those that count have done.

    :param final: what is in the database when all is quiet; an item that is not named is not there.
    :ivar committed: all that count, the reader of the final state among them.  One whose end is not
        known counts if another has read or replaced what it wrote, or if the final state shows it;
        then it has to be there as a whole.
    """

    def __init__(
        self, transactions: Iterable[Transaction], final: Mapping[Item, Version] | None = None
    ) -> None:
        every = list(transactions)
        if final is not None:
            every.append(_reader_of(final, every))
        unborn = never_there(every)
        every = resolved(every, unborn)
        self.final = every[-1] if final is not None else None
        self.transactions = {one.number: one for one in every if one is not self.final}
        known = {writer for one in every for writer in _leans_on(one)}
        self.committed = [
            one
            for one in every
            if one.outcome is Outcome.COMMITTED
            or (one.outcome is Outcome.UNKNOWN and one.number in known)
        ]
        self.seen = {one.number: one.seen() for one in self.committed}
        self.installed = {one.number: one.installed() for one in self.committed}
        self._gone = {(item, FIRST) for item in unborn} | {
            (write.item, write.version) for one in every for write in one.writes if write.gone
        }

    def is_gone(self, item: Item, version: Version) -> bool:
        """Return whether the item is not there in this version."""
        return version in (ABSENT, NOBODYS) or (item, version) in self._gone


def _reader_of(final: Mapping[Item, Version], every: Sequence[Transaction]) -> Transaction:
    """One that has read all items that the others name, after all of them."""
    items = {operation.item for one in every for operation in one.operations} | final.keys()
    tick = max((one.ended for one in every), default=0)
    reads: list[Read | Write] = [Read(item, final.get(item, ABSENT)) for item in sorted(items)]
    return Transaction(_FINAL, tick + 1, tick + 2, operations=reads)


def _leans_on(one: Transaction) -> Iterator[int]:
    """Yield the writers that it has read or replaced."""
    for operation in one.operations:
        version = operation.version if isinstance(operation, Read) else operation.over
        if version is not None and version.writer != one.number:
            yield version.writer
