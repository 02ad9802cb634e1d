"""Histories that are wrong on purpose, one for each anomaly, each with a right twin.

A history is one string, as in the literature: ``r1(x0)`` transaction 1 reads what was there first,
``w1(x1)`` it writes x, ``w1(x1.2)`` for the second time, over what it has read or written of x
before; ``w2(x2/x1)`` says itself what it replaces.  ``c1`` commits, ``a1`` aborts, ``u1`` nobody
knows.  The first operation of a transaction begins it.  ``h`` is the header of document 1, ``d`` and
``e`` are its details; ``x`` and ``y`` are headers of other documents.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.history.anomalies import Name
from tests.history.record import FIRST, History, Item, Outcome, Read, Transaction, Version, Write

_ITEMS = {"h": Item(1), "d": Item(1, "d"), "e": Item(1, "e"), "x": Item(2), "y": Item(3)}
_ENDS = {"c": Outcome.COMMITTED, "a": Outcome.ABORTED, "u": Outcome.UNKNOWN}
_STEP = re.compile(r"([rwcau])(\d+)(?:\((\w)(\d+)(?:\.(\d))?(?:/\w(\d+))?\))?")


class Twins(NamedTuple):
    wrong: str
    right: str
    also: frozenset[Name] = frozenset()  # what the same history shows as well


TWINS = {
    Name.GARBAGE_READ: Twins("w1(x1) c1 r2(x7) c2", "w1(x1) c1 r2(x1) c2"),
    Name.INTERNAL: Twins("r1(x0) w1(x1) r1(x0) c1", "r1(x0) w1(x1) r1(x1) c1"),
    Name.G1A: Twins("r1(x0) w1(x1) r2(x1) a1 c2", "r1(x0) w1(x1) r2(x0) a1 c2"),
    Name.G1B: Twins("w1(x1) r2(x1) w1(x1.2) c1 c2", "w1(x1) w1(x1.2) c1 r2(x1.2) c2"),
    Name.P2: Twins(
        "r2(x0) r1(x0) w1(x1) c1 r2(x1) c2",
        "r2(x0) r1(x0) w1(x1) c1 r2(x0) c2",
    ),
    Name.FRACTURED: Twins(
        "r2(h0) r1(h0) r1(d0) w1(h1) w1(d1) c1 r2(d1) c2",
        "r2(h0) r1(h0) r1(d0) w1(h1) w1(d1) c1 r2(d0) c2",
        frozenset({Name.G_SINGLE}),
    ),
    Name.P4: Twins(
        "r1(x0) r2(x0) w1(x1) c1 w2(x2) c2",
        "r1(x0) w1(x1) c1 r2(x1) w2(x2) c2",
    ),
    Name.G0: Twins(
        "w1(x1) w2(x2/x1) w2(y2) w1(y1/y2) c1 c2",
        "w1(x1) w1(y1) c1 w2(x2/x1) w2(y2/y1) c2",
    ),
    Name.G1C: Twins(
        "w1(x1) w2(y2) r1(y2) r2(x1) c1 c2",
        "w1(x1) r1(y0) w2(y2) c1 r2(x1) c2",
    ),
    Name.G_SINGLE: Twins(
        "r2(x0) r1(x0) r1(y0) w1(x1) w1(y1) c1 r2(y1) c2",
        "r2(x0) r1(x0) r1(y0) w1(x1) w1(y1) c1 r2(y0) c2",
    ),
    Name.G2_ITEM: Twins(
        "r1(x0) r1(y0) r2(x0) r2(y0) w1(x1) w2(y2) c1 c2",
        "r1(x0) r1(y0) w1(x1) c1 r2(x1) r2(y0) w2(y2) c2",
    ),
    Name.G1C_REALTIME: Twins("r1(x2) c1 w2(x2) c2", "w2(x2) c2 r1(x2) c1"),
    Name.G_SINGLE_REALTIME: Twins(
        "r1(x0) w1(x1) c1 r2(x0) c2",
        "r1(x0) r2(x0) w1(x1) c1 c2",
    ),
    Name.G2_ITEM_REALTIME: Twins(
        # 2 is open all the time: it must come after 1, and before 3, which had ended before 1
        "r2(x0) r2(y0) r3(y0) w3(y3) c3 r1(x0) c1 w2(x2) c2",
        "r2(x0) r2(y0) r3(y0) w3(y3) r1(x0) c3 c1 w2(x2) c2",
    ),
}


def history_of(text: str) -> History:
    """Read a history in this notation."""
    transactions: dict[int, Transaction] = {}
    current: dict[tuple[int, str], Version] = {}
    for tick, (what, number, letter, writer, nth, over) in enumerate(_STEP.findall(text), start=1):
        one = transactions.setdefault(int(number), Transaction(int(number), tick, tick))
        one.ended = tick
        if what in _ENDS:
            one.outcome = _ENDS[what]
            continue
        item, version = _ITEMS[letter], _version(writer, nth)
        if what == "r":
            one.operations.append(Read(item, version))
        else:
            replaced = _version(over, "") if over else current.get((one.number, letter))
            one.operations.append(Write(item, version, replaced))
        current[one.number, letter] = version
    return History(transactions.values())


def _version(writer: str, nth: str) -> Version:
    return Version(int(writer), int(nth or 1)) if int(writer) else FIRST
