"""Histories as the literature writes them: one string.

``r1(x0)`` transaction 1 reads what was there first, ``w1(x1)`` it writes x, ``w1(x1.2)`` for the
second time, over what it has read or written of x before; ``w2(x2/x1)`` says itself what it replaces.
``r1(d-)`` it reads that d is not there, and ``w1(d1)`` after that inserts it; ``x1(d1)`` deletes it.
``c1`` commits, ``a1`` aborts, ``u1`` nobody knows.  The first operation of a transaction begins it.
After ``|`` stands the final state.  ``h`` is the header of document 1, ``d`` and ``e`` are its details;
``x`` and ``y`` are headers of other documents.
"""

from __future__ import annotations

import re

from tests.reliability.history.record import (
    ABSENT,
    FIRST,
    History,
    Item,
    Outcome,
    Read,
    Transaction,
    Version,
    Write,
)

_ITEMS = {"h": Item(1), "d": Item(1, "d"), "e": Item(1, "e"), "x": Item(2), "y": Item(3)}
_ENDS = {"c": Outcome.COMMITTED, "a": Outcome.ABORTED, "u": Outcome.UNKNOWN}
_VERSION = r"(\d+(?:\.\d)?|-)"
_STEP = re.compile(rf"([rwxcau])(\d+)(?:\((\w){_VERSION}(?:/\w{_VERSION})?\))?")


def history_of(text: str) -> History:
    """Read a history in this notation."""
    steps, bar, left = text.partition("|")
    transactions: dict[int, Transaction] = {}
    current: dict[tuple[int, str], Version] = {}
    for tick, (what, number, letter, name, over) in enumerate(_STEP.findall(steps), start=1):
        one = transactions.setdefault(int(number), Transaction(int(number), tick, tick))
        one.ended = tick
        if what in _ENDS:
            one.outcome, one.committing = _ENDS[what], tick
            continue
        item, version = _ITEMS[letter], _version(name)
        if what == "r":
            one.operations.append(Read(item, version))
        else:
            replaced = _version(over) if over else current.get((one.number, letter))
            one.operations.append(Write(item, version, replaced, gone=what == "x"))
        current[one.number, letter] = version
    final = {_ITEMS[place[0]]: _version(place[1:]) for place in left.split()}
    return History(transactions.values(), final if bar else None)


def _version(name: str) -> Version:
    if name == "-":
        return ABSENT
    writer, _, nth = name.partition(".")
    return Version(int(writer), int(nth or 1)) if int(writer) else FIRST
