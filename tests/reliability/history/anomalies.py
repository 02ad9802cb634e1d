"""The names of what can be wrong with a history, as the literature has them.

Adya, "Weak Consistency" (1999): G0 to G2; Berenson and others, "A Critique of ANSI SQL Isolation
Levels" (1995): P0 to P4, A5A, A5B; Bailis and others, "Scalable Atomic Visibility with RAMP
Transactions" (2014): fractured read; Kingsbury and Alvaro, "Elle" (2020): garbage read, internal,
and -realtime for what is wrong only because one transaction had ended before the other began;
Jepsen: lost write.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class Name(enum.Enum):
    GARBAGE_READ = "garbage read"  # of a version that nobody wrote
    INTERNAL = "internal"  # a transaction does not see its own last write
    P0 = "P0 dirty write"  # over what another had not committed
    P1 = "P1 dirty read"  # of what another had not committed, and commits later
    G1A = "G1a aborted read"
    G1B = "G1b intermediate read"
    P2 = "P2 non-repeatable read"
    P3 = "P3 phantom"  # there, and then not there, or the other way round
    DOCUMENT = "non-repeatable document"  # two reads of a document differ, of which P2 or P3 tells
    FRACTURED = "fractured read"  # a part of what one transaction wrote to a document, not all
    P4 = "P4 lost update"
    LOST_WRITE = "lost write"  # it was committed, and is not in the final state
    G0 = "G0 write cycle"
    G1C = "G1c circular information flow"
    G_SINGLE = "G-single read skew (A5A)"
    G2_ITEM = "G2-item write skew (A5B)"
    G2 = "G2 write skew by a phantom"
    G1C_REALTIME = "G1c-realtime"
    G_SINGLE_REALTIME = "G-single-realtime stale read"
    G2_REALTIME = "G2-realtime"


class Anomaly(NamedTuple):
    name: Name
    what: str  # which transactions, which item

    def __str__(self) -> str:
        return f"{self.name.value}: {self.what}"
