"""Counts of equal things, of which at most so many are kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

LIMIT: Final = 2_000
"""The number of different things that a tally keeps; more are counted together."""


class Tally:
    """Counts by key; a key is a tuple of texts and numbers, so that it can be sent to another process."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._counts: dict[tuple[Any, ...], int] = {}
        self._limit = limit
        self.left_out = 0
        """The number of observations that have found no room."""

    def add(self, key: tuple[Any, ...], times: int = 1) -> None:
        """Count this key."""
        if key in self._counts or len(self._counts) < self._limit:
            self._counts[key] = self._counts.get(key, 0) + times
        else:
            self.left_out += times

    def __contains__(self, key: object) -> bool:
        return key in self._counts

    def __iter__(self) -> Iterator[tuple[tuple[Any, ...], int]]:
        return iter(list(self._counts.items()))

    def export(self) -> list[Any]:
        """Return the counts as lists, which ``merge()`` of another process takes."""
        return [self.left_out, *([*key, times] for key, times in self)]

    def merge(self, exported: Iterable[Any]) -> None:
        """Add the counts of another process."""
        left_out, *rows = exported
        self.left_out += left_out
        for *key, times in rows:
            self.add(tuple(key), times)
