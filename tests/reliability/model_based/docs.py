"""Documents as plain values, and what can be done to them.  Knows nothing of SQLAlchemy."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True)
class Doc:
    """An order: its total, the values of its lines, the taxes with the line that each is on."""

    total: int
    lines: Mapping[int, int] = field(default_factory=dict)
    taxes: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # line, value

    @property
    def consistent(self) -> bool:
        return self.total == sum(self.lines.values())


Docs = Mapping[int, Doc]


class Kind(enum.Enum):
    VALUE = "another value of a line, and total again"
    SHIFT = "value moves between two lines; the header is left alone"
    ADD = "a new line"
    REMOVE = "a line less"
    MOVE = "a line moves to another document"
    NEW_TAX = "a new part of a part"
    TAX = "another value of a tax"
    MOVE_TAX = "a tax moves to a line of another document"


MOVES = (Kind.MOVE, Kind.MOVE_TAX)


class Action(NamedTuple):
    """One change, down to the rows."""

    kind: Kind
    doc: int
    to: int  # of a move
    line: int
    other: int  # a line that value, or a tax, goes to
    tax: int
    number: int  # a key or value that was never there before

    @property
    def touched(self) -> set[int]:
        return {self.doc, self.to} if self.kind in MOVES else {self.doc}


def action(kind: Kind, doc: int, to: int, docs: Docs, pick: int, number: int) -> Action | None:
    """Choose the rows; None where there are none to choose from."""
    here, there = docs[doc], docs[to]
    lines, others, taxes = sorted(here.lines), sorted(there.lines), sorted(here.taxes)
    if kind is Kind.SHIFT:
        others = lines[1:]
    if kind in MOVES and doc == to:
        return None
    needs = {
        Kind.ADD: True,
        Kind.SHIFT: bool(others),
        Kind.TAX: bool(taxes),
        Kind.MOVE_TAX: bool(taxes and others),
    }
    if not needs.get(kind, bool(lines)):
        return None
    line = lines[0] if kind is Kind.SHIFT else _picked(lines, pick)
    return Action(kind, doc, to, line, _picked(others, pick), _picked(taxes, pick), number)


def _picked(keys: list[int], pick: int) -> int:
    return keys[pick % len(keys)] if keys else 0


def after(docs: Docs, what: Action) -> dict[int, Doc]:
    """The documents that the action touches, as it leaves them."""
    lines = {doc: dict(docs[doc].lines) for doc in what.touched}
    taxes = {doc: dict(docs[doc].taxes) for doc in what.touched}
    here, number = lines[what.doc], what.number
    if what.kind is Kind.VALUE:
        here[what.line] = number
    elif what.kind is Kind.SHIFT:
        here[what.line] -= number
        here[what.other] += number
    elif what.kind is Kind.ADD:
        here[number] = number
    elif what.kind in (Kind.REMOVE, Kind.MOVE):
        value = here.pop(what.line)
        gone = {tax: at for tax, at in taxes[what.doc].items() if at[0] == what.line}
        for tax in gone:
            del taxes[what.doc][tax]
        if what.kind is Kind.MOVE:
            lines[what.to][what.line] = value
            taxes[what.to] |= gone
    elif what.kind is Kind.NEW_TAX:
        taxes[what.doc][number] = (what.line, number)
    elif what.kind is Kind.TAX:
        taxes[what.doc][what.tax] = (taxes[what.doc][what.tax][0], number)
    elif what.kind is Kind.MOVE_TAX:
        _, value = taxes[what.doc].pop(what.tax)
        taxes[what.to][what.tax] = (what.other, value)
    return {doc: Doc(sum(lines[doc].values()), lines[doc], taxes[doc]) for doc in what.touched}
