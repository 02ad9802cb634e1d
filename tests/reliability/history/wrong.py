"""Histories that are wrong on purpose, one for each anomaly, each with a right twin."""

from __future__ import annotations

from typing import NamedTuple

from tests.reliability.history.anomalies import Name


class Twins(NamedTuple):
    """Two histories in the notation of ``tests/reliability/history/notation.py``."""

    wrong: str
    right: str
    also: frozenset[Name] = frozenset()  # what the wrong one shows as well


def _also(*names: Name) -> frozenset[Name]:
    return frozenset(names)


TWINS = {
    Name.GARBAGE_READ: Twins("w1(x1) c1 r2(x7) c2", "w1(x1) c1 r2(x1) c2"),
    Name.INTERNAL: Twins("r1(x0) w1(x1) r1(x0) c1", "r1(x0) w1(x1) r1(x1) c1"),
    Name.P0: Twins(
        "r1(x0) w1(x1) w2(x2/x1) c2 c1",
        "r1(x0) w1(x1) c1 w2(x2/x1) c2",
    ),
    Name.P1: Twins("r1(x0) w1(x1) r2(x1) c2 c1", "r1(x0) w1(x1) r2(x0) c2 c1"),
    Name.G1A: Twins("r1(x0) w1(x1) r2(x1) a1 c2", "r1(x0) w1(x1) r2(x0) a1 c2"),
    Name.G1B: Twins("w1(x1) r2(x1) w1(x1.2) c1 c2", "w1(x1) w1(x1.2) c1 r2(x1.2) c2"),
    Name.P2: Twins(
        "r2(x0) r1(x0) w1(x1) c1 r2(x1) c2",
        "r2(x0) r1(x0) w1(x1) c1 r2(x0) c2",
    ),
    Name.P3: Twins(
        "r2(d-) r1(d-) w1(d1) c1 r2(d1) c2",
        "r2(d-) r1(d-) w1(d1) c1 r2(d-) c2",
    ),
    Name.DOCUMENT: Twins(
        "r2(h0) r2(d0) r1(h0) r1(d0) w1(h1) w1(d1) c1 r2(h1) r2(d1) c2",
        "r2(h0) r2(d0) r1(h0) r1(d0) w1(h1) w1(d1) c1 r2(h0) r2(d0) c2",
        _also(Name.P2),
    ),
    Name.FRACTURED: Twins(
        "r2(h0) r1(h0) r1(d0) w1(h1) w1(d1) c1 r2(d1) c2",
        "r2(h0) r1(h0) r1(d0) w1(h1) w1(d1) c1 r2(d0) c2",
        _also(Name.G_SINGLE),
    ),
    Name.P4: Twins(
        "r1(x0) r2(x0) w1(x1) c1 w2(x2) c2",
        "r1(x0) w1(x1) c1 r2(x1) w2(x2) c2",
    ),
    Name.LOST_WRITE: Twins(
        "r1(x0) w1(x1) c1 | x0",
        "r1(x0) w1(x1) c1 | x1",
    ),
    Name.G0: Twins(
        "w1(x1) w2(x2/x1) w2(y2) w1(y1/y2) c1 c2",
        "w1(x1) w1(y1) c1 w2(x2/x1) w2(y2/y1) c2",
        _also(Name.P0),
    ),
    Name.G1C: Twins(
        "w1(x1) w2(y2) r1(y2) r2(x1) c1 c2",
        "w1(x1) r1(y0) w2(y2) c1 r2(x1) c2",
        _also(Name.P1),
    ),
    Name.G_SINGLE: Twins(
        "r2(x0) r1(x0) r1(y0) w1(x1) w1(y1) c1 r2(y1) c2",
        "r2(x0) r1(x0) r1(y0) w1(x1) w1(y1) c1 r2(y0) c2",
    ),
    Name.G2_ITEM: Twins(
        "r1(x0) r1(y0) r2(x0) r2(y0) w1(x1) w2(y2) c1 c2",
        "r1(x0) r1(y0) w1(x1) c1 r2(x1) r2(y0) w2(y2) c2",
    ),
    Name.G2: Twins(
        "r1(d-) r1(e-) r2(d-) r2(e-) w1(d1) w2(e2) c1 c2",
        "r1(d-) r1(e-) w1(d1) c1 r2(d1) r2(e-) w2(e2) c2",
    ),
    Name.G1C_REALTIME: Twins(
        "r1(x2) c1 w2(x2) c2",
        "w2(x2) c2 r1(x2) c1",
        _also(Name.P1),
    ),
    Name.G_SINGLE_REALTIME: Twins(
        "r1(x0) w1(x1) c1 r2(x0) c2",
        "r1(x0) r2(x0) w1(x1) c1 c2",
    ),
    Name.G2_REALTIME: Twins(
        # 2 is open all the time: it must come after 1, and before 3, which had ended before 1
        "r2(x0) r2(y0) r3(y0) w3(y3) c3 r1(x0) c1 w2(x2) c2",
        "r2(x0) r2(y0) r3(y0) w3(y3) r1(x0) c3 c1 w2(x2) c2",
    ),
}

_DELETED_TWICE = (
    "r1(h0) r1(d0) w1(h1) x1(d1) c1 r2(h1) r2(d-) w2(h2) w2(d2) c2 r3(h2) r3(d2) w3(h3) x3(d3) c3"
)
DOCUMENTS = {
    "a detail appears between two reads": (
        Name.P3,
        "r2(h0) r2(d-) r1(h0) r1(d-) w1(h1) w1(d1) c1 r2(h0) r2(d1) c2",
        "r2(h0) r2(d-) r1(h0) r1(d-) w1(h1) w1(d1) c1 r2(h0) r2(d-) c2",
    ),
    "a detail disappears between two reads": (
        Name.P3,
        "r2(d0) r1(d0) x1(d1) c1 r2(d-) c2",
        "r2(d0) r1(d0) x1(d1) c1 r2(d0) c2",
    ),
    "a total that counts a detail which is not seen": (
        Name.FRACTURED,
        "r1(h0) r1(d-) w1(h1) w1(d1) r2(d-) c1 r2(h1) c2",
        "r1(h0) r1(d-) w1(h1) w1(d1) c1 r2(d1) r2(h1) c2",
    ),
    "a detail that the total does not count": (
        Name.FRACTURED,
        "r2(h0) r1(h0) r1(d-) w1(h1) w1(d1) c1 r2(d1) c2",
        "r1(h0) r1(d-) w1(h1) w1(d1) c1 r2(h1) r2(d1) c2",
    ),
    "a total without a detail that is still there": (
        Name.FRACTURED,
        "r2(d0) r1(h0) r1(d0) w1(h1) x1(d1) c1 r2(h1) c2",
        "r1(h0) r1(d0) w1(h1) x1(d1) c1 r2(d-) r2(h1) c2",
    ),
    "a resurrected detail": (  # 2 writes what 1 has deleted, and it is there again
        Name.P4,
        "r1(d0) r2(d0) x1(d1) c1 w2(d2) c2 r3(d2) c3",
        "r1(d0) x1(d1) c1 r2(d-) w2(d2) c2 r3(d2) c3",
    ),
    "a resurrected detail, seen": (
        Name.G_SINGLE_REALTIME,
        "r1(d0) x1(d1) c1 r2(d-) c2 r3(d0) c3",
        "r1(d0) x1(d1) c1 r2(d-) c2 r3(d-) c3",
    ),
    "the same detail inserted twice": (
        Name.P4,
        "r1(d-) r2(d-) w1(d1) c1 w2(d2) c2",
        "r1(d-) w1(d1) c1 r2(d1) w2(d2) c2",
    ),
    "a lost insert": (
        Name.LOST_WRITE,
        "r1(h0) r1(d-) w1(h1) w1(d1) c1 | h1",
        "r1(h0) r1(d-) w1(h1) w1(d1) c1 | h1 d1",
    ),
    "a lost delete": (
        Name.LOST_WRITE,
        "r1(h0) r1(d0) w1(h1) x1(d1) c1 | h1 d0",
        "r1(h0) r1(d0) w1(h1) x1(d1) c1 | h1",
    ),
    "a detail that nobody has deleted": (
        Name.GARBAGE_READ,
        "r1(d0) c1 r2(d-) c2",
        "r1(d0) x1(d1) c1 r2(d-) c2",
    ),
    "a delete that was rolled back": (
        Name.G1A,
        "r1(d0) x1(d1) r2(d-) a1 c2",
        "r1(d0) x1(d1) a1 r2(d0) c2",
    ),
    "an insert that was rolled back": (
        Name.G1A,
        "r1(d-) w1(d1) r2(d1) a1 c2",
        "r1(d-) w1(d1) r2(d-) a1 c2",
    ),
    "a detail that its writer then deleted": (
        Name.G1B,
        "r1(d-) w1(d1) r2(d1) x1(d1.2) c1 c2",
        "r1(d-) w1(d1) x1(d1.2) c1 r2(d-) c2",
    ),
    "write skew between header and details": (  # one totals again, the other changes a detail
        Name.G2_ITEM,
        "r1(h0) r1(d0) r2(h0) r2(d0) w1(h1) w2(d2) c1 c2",
        "r1(h0) r1(d0) w1(h1) c1 r2(h1) r2(d0) w2(d2) c2",
    ),
    "write skew between header and a new detail": (
        Name.G2,
        "r1(h0) r1(d-) r2(h0) r2(d-) w1(h1) w2(d2) c1 c2",
        "r1(h0) r1(d-) w1(h1) c1 r2(h1) r2(d-) w2(d2) c2",
    ),
    "read skew between header and details": (
        Name.G_SINGLE,  # 3 has not written what 2 reads of it, but came after 1
        "r2(d-) r1(h0) r1(d-) w1(h1) w1(d1) c1 r3(h1) w3(h3) c3 r2(h3) c2",
        "r1(h0) r1(d-) w1(h1) w1(d1) c1 r2(d1) r3(h1) w3(h3) c3 r2(h3) c2",
    ),
    "the second of two deletions is not seen": (
        Name.G_SINGLE_REALTIME,
        f"{_DELETED_TWICE} r4(h1) r4(d-) c4",
        f"{_DELETED_TWICE} r4(h3) r4(d-) c4",
    ),
}
"""Wrong histories of a document whose details come and go: the name, wrong, right."""
