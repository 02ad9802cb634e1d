"""The combined history of several transactions."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

# --------------------------------------------------------------------------------------------------
# The reads and writes of one transaction.
#
# Every write makes a unique version, so a read tells whose write it saw. A write also names the
# version it replaced, which puts the versions of an item in order.  A missing item
# has a version too: that of its deletion, or ``FIRST`` if it never existed.


class Item(NamedTuple):
    """A header, whose part is ``""``, or one of its details."""

    document: int
    part: str = ""

    def __str__(self) -> str:
        return f"{self.document}.{self.part}" if self.part else str(self.document)


class Version(NamedTuple):
    """An item's state after a write: ``number`` counts one writer's writes to it, from 1."""

    writer: int
    number: int = 1

    def __str__(self) -> str:
        return _NAMES.get(self) or f"T{self.writer}:{self.number}"


FIRST = Version(0, 0)
"""Of every item, before the first transaction: there or not."""

ABSENT = Version(0, -1)
"""Not there; the history finds out since when (``tests/reliability/history/record.py``)."""

NOBODYS = Version(0, -2)
"""Not there, though it had been and nobody has deleted it; only the history says so."""

_NAMES = {FIRST: "the first", ABSENT: "absent", NOBODYS: "absent, which nobody made it"}


class Read(NamedTuple):
    """:ivar version: ``ABSENT`` if the item did not exist."""

    item: Item
    version: Version


class Write(NamedTuple):
    """:ivar over: the replaced version; ``ABSENT`` for an insert; None if unknown.
    :ivar gone: the write deletes the item; readers see this version only as ``ABSENT``.
    """

    item: Item
    version: Version
    over: Version | None
    gone: bool = False


class Outcome(enum.Enum):
    COMMITTED = "committed"  # or ended after its reads, which stay valid
    ABORTED = "aborted"
    UNKNOWN = "unknown"  # the connection was lost in the commit, or the client was killed


@dataclass
class Transaction:
    """One transaction, from before its first statement until its end returned.

    :ivar number: its own number, from 1.
    :ivar began: a tick of the shared clock, as are ``ended`` and ``committing``.
    :ivar ended: meaningless for an UNKNOWN outcome: the server may commit later.
    :ivar committing: when COMMIT was about to be sent; None if not recorded.
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
        """Return its first read of each item, before its own first write."""
        seen: dict[Item, Version] = {}
        written = set()
        for one in self.operations:
            if isinstance(one, Write):
                written.add(one.item)
            elif one.item not in written:
                seen.setdefault(one.item, one.version)
        return seen

    def installed(self) -> dict[Item, Write]:
        """Return its last version of each item that it wrote, over the version before its first write."""
        installed: dict[Item, Write] = {}
        for one in self.writes:
            first = installed.get(one.item, one)
            installed[one.item] = one._replace(over=first.over)
        return installed


# --------------------------------------------------------------------------------------------------
# How long an item has been absent, which a reader cannot see.
#
# ``ABSENT`` stands for the item's deletion, or for ``FIRST`` if it never existed.  If an item was
# deleted more than once, the header that the same transaction read tells which deletion it is,
# if everyone who deletes a detail also writes the header.  Otherwise it stays open: no edge, and
# no accusation.


def never_there(transactions: Sequence[Transaction]) -> set[Item]:
    """Return the items that did not exist before the first transaction."""
    absent, there = set(), set()
    for one in transactions:
        for operation in one.operations:
            for version in _versions(operation):
                if version == ABSENT:
                    absent.add(operation.item)
                elif version == FIRST:
                    there.add(operation.item)
    return absent - there


def resolved(transactions: Sequence[Transaction], unborn: set[Item]) -> list[Transaction]:
    """Return the same transactions, with a version in place of ``ABSENT`` wherever it can be known.

    :param unborn: items that did not exist at first.
    """
    if not any(ABSENT in _versions(one) for each in transactions for one in each.operations):
        return list(transactions)
    deletions = _Deletions(transactions, unborn)
    return [replace(one, operations=_known_operations(one, deletions)) for one in transactions]


def _versions(operation: Read | Write) -> tuple[Version | None, ...]:
    if isinstance(operation, Read):
        return (operation.version,)
    return (operation.over,)


def _known_operations(one: Transaction, deletions: _Deletions) -> list[Read | Write]:
    """Return its operations with known versions; it knows its own deletions."""
    reported: list[Read | Write] = []
    own: dict[Item, Version] = {}
    headers = _first_headers(one)
    for operation in one.operations:
        item = operation.item
        if ABSENT in _versions(operation):
            since = own.get(item) or deletions.of(item, headers.get(item.document))
            if isinstance(operation, Read):
                reported.append(Read(item, since))
            else:
                reported.append(operation._replace(over=since))
        else:
            reported.append(operation)
        if isinstance(operation, Write):
            own.pop(item, None)
            if operation.gone:
                own[item] = operation.version
        elif not item.part and operation.version.writer != one.number:
            headers[item.document] = operation.version
    return reported


def _first_headers(one: Transaction) -> dict[int, Version]:
    """Return the header of each document as the transaction first saw it."""
    headers: dict[int, Version] = {}
    for operation in one.operations:
        version = operation.version if isinstance(operation, Read) else operation.over
        if not operation.item.part and version is not None:
            headers.setdefault(operation.item.document, version)
    return headers


class _Head(NamedTuple):
    version: Version
    gone: dict[str, Version]  # the details that its writer deleted


class _Deletions:
    """All deletions, and for each version of a header, the deletions before it."""

    def __init__(self, transactions: Sequence[Transaction], unborn: set[Item]) -> None:
        self._unborn = unborn
        self._any: dict[Item, list[Version]] = {}
        self._aborted: dict[Item, Version] = {}
        self._loose: set[Item] = set()
        heads: dict[tuple[int, Version], list[_Head]] = {}
        for one in transactions:
            installed = one.installed()
            gone = {item: write.version for item, write in installed.items() if write.gone}
            if one.outcome is Outcome.ABORTED:
                self._aborted |= gone
                continue
            for item, version in gone.items():
                self._any.setdefault(item, []).append(version)
                if Item(item.document) not in installed:
                    self._loose.add(item)
            for (document, part), head in installed.items():
                if not part and head.over is not None:
                    parts = {item.part: gone[item] for item in gone if item.document == document}
                    heads.setdefault((document, head.over), []).append(_Head(head.version, parts))
        self._before = _before(heads)

    def of(self, item: Item, header: Version | None) -> Version:
        """Return the deletion that a reader of this header must have met."""
        found = self._any.get(item, [])
        if item in self._unborn:
            found = [FIRST, *found]
        if not found:
            return self._aborted.get(item, NOBODYS)
        if len(found) == 1:
            return found[0]
        if item in self._loose or header is None:
            return ABSENT
        before = self._before.get((item.document, header))
        return ABSENT if before is None else before.get(item.part, found[0])


def _before(
    heads: Mapping[tuple[int, Version], Sequence[_Head]],
) -> dict[tuple[int, Version], Mapping[str, Version]]:
    """Return, for each version of a header, the last earlier deletion of each detail."""
    before: dict[tuple[int, Version], Mapping[str, Version]] = {
        (document, FIRST): {} for document, _ in heads
    }
    front = list(before)
    while front:
        document, version = front.pop()
        for head in heads.get((document, version), ()):
            if (place := (document, head.version)) not in before:
                gone = before[document, version]
                before[place] = {**gone, **head.gone} if head.gone else gone
                front.append(place)
    return before


# --------------------------------------------------------------------------------------------------
# The history that transactions make together: which count, and which version follows which.

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

_FINAL = -1  # the number of the reader of the final state


class History:
    """The transactions, and the effects of those that count.

    :param final: the final contents of the database; an unnamed item does not exist.
    :ivar committed: all that count, including the reader of the final state.  A transaction with an unknown
        end counts if another read or replaced its writes, or if the final state shows them; then all
        of its writes must be there.
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
        """Return whether the item does not exist in this version."""
        return version in (ABSENT, NOBODYS) or (item, version) in self._gone


def _reader_of(final: Mapping[Item, Version], every: Sequence[Transaction]) -> Transaction:
    """Return a transaction that reads all items named by the others, after all of them."""
    items = {operation.item for one in every for operation in one.operations} | final.keys()
    tick = max((one.ended for one in every), default=0)
    reads: list[Read | Write] = [Read(item, final.get(item, ABSENT)) for item in sorted(items)]
    return Transaction(_FINAL, tick + 1, tick + 2, operations=reads)


def _leans_on(one: Transaction) -> Iterator[int]:
    """Yield the writers whose versions it read or replaced."""
    for operation in one.operations:
        version = operation.version if isinstance(operation, Read) else operation.over
        if version is not None and version.writer != one.number:
            yield version.writer
