"""The names of what can be wrong with a history, as the literature has them.

Adya, "Weak Consistency" (1999): G0 to G2; Berenson and others, "A Critique of ANSI SQL Isolation
Levels" (1995): P2, P4; Bailis and others, "Scalable Atomic Visibility with RAMP Transactions"
(2014): fractured read; Kingsbury and Alvaro, "Elle" (2020): garbage read, internal, and -realtime
for what is wrong only because one transaction had ended before the other began.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class Name(enum.Enum):
    GARBAGE_READ = "garbage read"  # of a version that nobody wrote
    INTERNAL = "internal"  # a transaction does not see its own last write
    G1A = "G1a aborted read"
    G1B = "G1b intermediate read"
    P2 = "P2 non-repeatable read"
    FRACTURED = "fractured read"  # a part of what one transaction wrote to a document, not all
    P4 = "P4 lost update"
    G0 = "G0 write cycle"
    G1C = "G1c circular information flow"
    G_SINGLE = "G-single read skew"
    G2_ITEM = "G2-item write skew"
    G1C_REALTIME = "G1c-realtime"
    G_SINGLE_REALTIME = "G-single-realtime stale read"
    G2_ITEM_REALTIME = "G2-item-realtime"


class Anomaly(NamedTuple):
    name: Name
    what: str  # which transactions, which item

    def __str__(self) -> str:
        return f"{self.name.value}: {self.what}"
