"""Since when an item was not there, which a reader cannot see.

``ABSENT`` stands for the item's deletion, or for ``FIRST`` if it never was.  Where an item was deleted
more than once, the header that the same transaction has read tells which deletion it is, provided
that whoever deletes a detail writes the header as well.  Otherwise it is left open: then it is an
edge to nobody, and accuses nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

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


def never_there(transactions: Sequence[Transaction]) -> set[Item]:
    """The items that were not there before the first transaction."""
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
    """The same transactions, with a version in place of ``ABSENT`` wherever it can be known.

    :param unborn: what was never there at first.
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
    """Its operations; what it has deleted itself, it knows."""
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
    """Of each document, the header as the transaction first met it."""
    headers: dict[int, Version] = {}
    for operation in one.operations:
        version = operation.version if isinstance(operation, Read) else operation.over
        if not operation.item.part and version is not None:
            headers.setdefault(operation.item.document, version)
    return headers


class _Head(NamedTuple):
    version: Version
    gone: dict[str, Version]  # the details that its writer has deleted


class _Deletions:
    """All deletions, and those of them that lie before a version of the header."""

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
        """The deletion that who read this header must have met."""
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
    """Of each version of a header: the last deletion of each detail, up to it."""
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
