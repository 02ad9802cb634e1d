"""Of each item, which version has replaced which."""

from __future__ import annotations

from collections import deque

from tests.reliability.history.record import ABSENT, History, Item, Version


class Orders:
    """The versions of all items, also of those that were rolled back: they may have been read."""

    def __init__(self, history: History) -> None:
        self._before: dict[tuple[Item, Version], Version] = {}
        for transaction in history.transactions.values():
            for write in transaction.writes:
                if write.over not in (None, ABSENT):
                    self._before[write.item, write.version] = write.over
        self._rank = self._ranks()

    def older(self, item: Item, one: Version, other: Version) -> bool:
        """Return whether the one came before the other."""
        ranks = self._rank.get((item, one)), self._rank.get((item, other))
        if ranks[0] is None or ranks[1] is None or ranks[0] >= ranks[1]:
            return False
        at = other
        for _ in range(ranks[1] - ranks[0]):
            at = self._before[item, at]
        return at == one

    def _ranks(self) -> dict[tuple[Item, Version], int]:
        """Count those before each version; those that replace each other in a ring have no rank."""
        after: dict[tuple[Item, Version], list[Version]] = {}
        for (item, version), over in self._before.items():
            after.setdefault((item, over), []).append(version)
        ranks = dict.fromkeys(after.keys() - self._before.keys(), 0)
        front = deque(ranks)
        while front:
            place = front.popleft()
            for version in after.get(place, ()):
                ranks[place[0], version] = ranks[place] + 1
                front.append((place[0], version))
        return ranks
