"""The sequence of events that a finding warns about, as a table of two columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

Story = Sequence[tuple[str, str]]
"""Each step: the transaction that takes it, "first" or "second", and its action.

``{0}`` stands for the first of the finding's lines, ``{-1}`` for the last, and so on.
"""

FIRST: Final = "first"
SECOND: Final = "second"

STORIES: Final[Mapping[str, Story]] = {
    "lost-update": (
        (FIRST, "reads the row without a lock: {0}"),
        (SECOND, "reads the same row, with the same values"),
        (FIRST, "writes its new value, and commits: {-1}"),
        (SECOND, "writes a value based on the old one, and commits"),
        (SECOND, "the first change is lost, without an error"),
    ),
    "detail-without-header": (
        (FIRST, "locks the header: {-1}"),
        (FIRST, "reads the details, for a sum for example"),
        (SECOND, "writes a detail without that lock, and commits: {0}"),
        (FIRST, "writes the header from those details, and commits"),
        (FIRST, "the header and its details do not match"),
    ),
    "lock-order-cycle": (
        (FIRST, "locks one row: {0}"),
        (SECOND, "locks another row: {2}"),
        (FIRST, "tries to lock the second row, and waits: {1}"),
        (SECOND, "tries to lock the first row: {3}"),
        (SECOND, "deadlock: the database rolls one of the two back"),
    ),
    "lock-without-effect": (
        (FIRST, "requests a lock, and gets none: {0}"),
        (SECOND, "does the same, and does not wait"),
        (FIRST, "writes, and commits"),
        (SECOND, "writes what it computed before, and commits"),
        (SECOND, "the first change is lost, without an error"),
    ),
    "stale-after-lock": (
        (FIRST, "reads the row: {0}"),
        (SECOND, "changes the row, and commits"),
        (FIRST, "locks the row; the object keeps the old values: {-1}"),
        (FIRST, "writes what it computed from them, and commits"),
        (SECOND, "its change is lost, despite the lock"),
    ),
    "check-then-insert": (
        (FIRST, "looks for the row, and finds none: {0}"),
        (SECOND, "looks for the same row, and finds none"),
        (FIRST, "inserts the row, and commits: {-1}"),
        (SECOND, "inserts the row too, and commits"),
        (SECOND, "the row exists twice, without an error"),
    ),
    "capacity": (
        (FIRST, "counts the rows, and finds room for one more: {0}"),
        (SECOND, "counts the same rows, and finds room for one more"),
        (FIRST, "inserts a row, and commits: {-1}"),
        (SECOND, "inserts a row too, and commits"),
        (SECOND, "there is one row too many, without an error"),
    ),
    "max-plus-one": (
        (FIRST, "reads the existing numbers: {0}"),
        (SECOND, "reads the same numbers"),
        (FIRST, "inserts a row with the next number, and commits: {-1}"),
        (SECOND, "inserts a row with the same number, and commits"),
        (SECOND, "the number exists twice, without an error"),
    ),
    "long-hold": (
        (FIRST, "locks the row: {0}"),
        (SECOND, "tries to lock the row, and waits"),
        (FIRST, "works or waits, and sends no statement"),
        (FIRST, "continues, and commits: {-1}"),
        (SECOND, "continues, or has failed with a lock timeout"),
    ),
    "idle-transaction": (
        (FIRST, "reads, and its transaction stays open"),
        (FIRST, "works or waits, and sends no statement: {0}"),
        (SECOND, "needs a connection, but the pool might have none left"),
        (SECOND, "changes rows; the server must keep their old versions"),
        (FIRST, "continues, and ends its transaction"),
    ),
}
"""The story of each code."""


def story_of(code: str, sites: Sequence[str]) -> Story:
    """Return the steps of this finding, with its lines; empty if the code has no story."""
    return [(who, _with_sites(text, sites)) for who, text in STORIES.get(code, ())]


def _with_sites(text: str, sites: Sequence[str]) -> str:
    head, brace, rest = text.partition("{")
    if not brace:
        return text
    index = int(rest.rstrip("}"))
    if not sites:
        return head.rstrip(": ")
    return f"{head}{sites[min(index, len(sites) - 1)]}"
