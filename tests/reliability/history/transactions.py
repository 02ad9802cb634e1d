"""The reads and writes of one transaction.

Every write makes a version that nobody else makes, so that a read tells whose write it saw; and a
write says which version it has replaced, which puts the versions of an item in order.  An item that
is not there has a version too: that of its deletion, or ``FIRST`` where it never was.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple


class Item(NamedTuple):
    """A header, whose part is ``""``, or one of its details."""

    document: int
    part: str = ""

    def __str__(self) -> str:
        return f"{self.document}.{self.part}" if self.part else str(self.document)


class Version(NamedTuple):
    """An item's state after a write: ``number`` counts the writes of one writer to it, from 1."""

    writer: int
    number: int = 1

    def __str__(self) -> str:
        return _NAMES.get(self) or f"T{self.writer}:{self.number}"


FIRST = Version(0, 0)
"""Of every item, before the first transaction: there or not."""

ABSENT = Version(0, -1)
"""Not there; the history finds out since when (``tests/reliability/history/absence.py``)."""

NOBODYS = Version(0, -2)
"""Not there, though it had been and nobody has deleted it; only the history says so."""

_NAMES = {FIRST: "the first", ABSENT: "absent", NOBODYS: "absent, which nobody made it"}


class Read(NamedTuple):
    """:ivar version: ``ABSENT`` where the item was not there."""

    item: Item
    version: Version


class Write(NamedTuple):
    """:ivar over: the version that was replaced; ``ABSENT``: it is inserted; None: not known.
    :ivar gone: it is deleted; nobody can read this version but as ``ABSENT``.
    """

    item: Item
    version: Version
    over: Version | None
    gone: bool = False


class Outcome(enum.Enum):
    COMMITTED = "committed"  # or ended by the end of its reads, which saw what they saw
    ABORTED = "aborted"
    UNKNOWN = "unknown"  # the connection was lost in the commit, or the client was killed


@dataclass
class Transaction:
    """One transaction, from before its first statement until its end had returned.

    :ivar number: 1 or more, its own.
    :ivar began: a tick of the clock that all share, as ``ended`` and ``committing`` are.
    :ivar ended: of an UNKNOWN one it means nothing: the server may commit later.
    :ivar committing: when COMMIT was about to be sent; None where nobody has noted it.
    """

    number: int
    began: int
    ended: int
    outcome: Outcome = Outcome.COMMITTED
    operations: list[Read | Write] = field(default_factory=list)
    committing: int | None = None

    def __str__(self) -> str:
        return f"T{self.number}" if self.number > 0 else "the final state"

    @property
    def writes(self) -> Iterator[Write]:
        return (one for one in self.operations if isinstance(one, Write))

    def seen(self) -> dict[Item, Version]:
        """Return what it first read of each item, before it wrote it itself."""
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
            installed[one.item] = one._replace(over=first.over)
        return installed
