"""What one transaction has read and written, and the history that they make together.

Every write makes a version that nobody else makes, so that a read tells whose write it saw; and a
write says which version it has replaced, which puts the versions of an item in order.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple


class Item(NamedTuple):
    """A header, whose part is ``""``, or one of its details."""

    document: int
    part: str = ""

    def __str__(self) -> str:
        return f"{self.document}.{self.part}" if self.part else str(self.document)


class Version(NamedTuple):
    """What an item was after a write: ``number`` counts the writes of one writer to it, from 1."""

    writer: int
    number: int = 1

    def __str__(self) -> str:
        return f"T{self.writer}:{self.number}" if self.writer else "the first"


FIRST = Version(0, 0)
"""Of every item, before the first transaction."""


class Read(NamedTuple):
    item: Item
    version: Version


class Write(NamedTuple):
    """:ivar over: the version that was replaced; None where that is not known."""

    item: Item
    version: Version
    over: Version | None


class Outcome(enum.Enum):
    COMMITTED = "committed"  # or ended by the end of its reads, which saw what they saw
    ABORTED = "aborted"
    UNKNOWN = "unknown"  # the connection was lost in the commit


@dataclass
class Transaction:
    """One transaction, from before its first statement until its end had returned.

    :ivar number: 1 or more, its own.
    :ivar began: a tick of the clock that all share, as ``ended`` is.
    """

    number: int
    began: int
    ended: int
    outcome: Outcome = Outcome.COMMITTED
    operations: list[Read | Write] = field(default_factory=list)

    def __str__(self) -> str:
        return f"T{self.number}"

    @property
    def writes(self) -> Iterator[Write]:
        return (one for one in self.operations if isinstance(one, Write))

    def seen(self) -> dict[Item, Version]:
        """What it first read of each item, before it wrote it itself."""
        seen: dict[Item, Version] = {}
        written = set()
        for one in self.operations:
            if isinstance(one, Write):
                written.add(one.item)
            elif one.item not in written:
                seen.setdefault(one.item, one.version)
        return seen

    def installed(self) -> dict[Item, Write]:
        """Of each item that it wrote: its last version, over what was there before its first."""
        installed: dict[Item, Write] = {}
        for one in self.writes:
            first = installed.get(one.item, one)
            installed[one.item] = Write(one.item, one.version, first.over)
        return installed


class History:
    """The transactions, and what those that count have done.

    :ivar committed: one whose end is not known counts as committed if another has read from it.
    """

    def __init__(self, transactions: Iterable[Transaction]) -> None:
        self.transactions = {one.number: one for one in transactions}
        read_from = {
            operation.version.writer
            for reader in self.transactions.values()
            for operation in reader.operations
            if isinstance(operation, Read) and operation.version.writer != reader.number
        }
        self.committed = [
            one
            for one in self.transactions.values()
            if one.outcome is Outcome.COMMITTED
            or (one.outcome is Outcome.UNKNOWN and one.number in read_from)
        ]
        self.seen = {one.number: one.seen() for one in self.committed}
        self.installed = {one.number: one.installed() for one in self.committed}
