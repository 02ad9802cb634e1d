"""Which rows come up next: the keys of the candidates, page by page and pass by pass."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from sqlalchemy import Select

from ..lock_info import Identity
from .query import Claimable
from .report import Tally

PAGE: Final = 1_000
"""How many keys one read brings, and how many are kept beside those that are remembered."""

_MISSES: Final = 3  # turns in a row that came to nothing: others work at the same place
_LOOK_AHEAD: Final = 200

Read = Callable[[Select[Any]], Sequence[Identity]]


class Passes:
    """The keys in the order in which they come up; each once a pass.

    Where others work at the same rows, this one goes on at another place of the page, unless an
    order was asked for: 8 workers that stay together send five times as many statements.

    In the order of the keys a page begins behind the last key of the page before. In another
    order what came up already may be in front of the next page, and is read again.

    :param read: reads keys, in a transaction of its own.
    :param attempts: passes in a row that come to nothing, after which there are no more.
    """

    def __init__(
        self,
        claimable: Claimable,
        read: Read,
        tally: Tally,
        *,
        page: int,
        until_empty: bool,
        attempts: int,
        sleep: Callable[[float], object],
    ) -> None:
        self._claimable, self._read, self._tally = claimable, read, tally
        self._page, self._until_empty = page, until_empty
        self._attempts, self._sleep = attempts, sleep
        self._queue: deque[Identity] = deque()
        self._read_to_the_end = self._over = False
        self._after: Identity | None = None  # in the order of the keys
        self._seen: set[Identity] = set()  # in another: what has come up in this pass
        self._in_front = 0  # ... and may do so again
        self._found = False
        self._settled_before = 0
        self._in_vain = 0
        self._misses = 0

    def take(self, count: int) -> list[Identity]:
        """At most so many keys, which have their turn now; none when there are no more."""
        if self._misses >= _MISSES:
            self._look_ahead()
        while not self._queue:
            if self._over:
                return []
            if not self._tally.report.passes:
                self._begin()
            elif self._read_to_the_end:
                self._end()
            else:
                self._read_page()
        return [self._queue.popleft() for _ in range(min(count, len(self._queue)))]

    def put_back(self, keys: Iterable[Identity]) -> None:
        """Their turn was over before they came up."""
        self._queue.extendleft(reversed(list(keys)))

    def came_to(self, something: bool) -> None:
        """Whether any of the keys taken last could be claimed."""
        self._misses = 0 if something else self._misses + 1

    def _look_ahead(self) -> None:
        """Leave out, by one read, what others have processed; and go where they are not."""
        self._misses = 0
        if not self._queue:
            return
        if not self._claimable.order:
            self._queue.rotate(-random.randrange(len(self._queue)))  # noqa: S311
        next_ones = [self._queue.popleft() for _ in range(min(_LOOK_AHEAD, len(self._queue)))]
        matching = set(self._read(self._claimable.matching(next_ones)))
        self._tally.gone(key for key in next_ones if key not in matching)
        self.put_back(key for key in next_ones if key in matching)

    def _begin(self) -> None:
        self._tally.new_pass()
        self._read_to_the_end = self._found = False
        self._after, self._in_front = None, 0
        self._seen.clear()
        self._settled_before = len(self._tally.settled)

    def _end(self) -> None:
        self._tally.end_of_pass()
        self._over = not (self._until_empty and self._found and self._may_go_on())
        if not self._over:
            self._begin()

    def _may_go_on(self) -> bool:
        if len(self._tally.settled) > self._settled_before:
            self._in_vain = 0
            return True
        self._in_vain += 1
        if self._in_vain >= self._attempts:
            return False
        self._sleep(_rest(self._in_vain))
        return True

    def _read_page(self) -> None:
        size = self._page + self._in_front
        rows = self._read(self._claimable.page(size, self._after))
        self._read_to_the_end = len(rows) < size
        settled, seen = self._tally.settled, self._seen
        new = [key for key in dict.fromkeys(rows) if key not in settled and key not in seen]
        if not self._claimable.order:
            self._after = rows[-1] if rows else self._after
        else:
            self._in_front = len(rows) - len(new) if new else size
            self._seen.update(new)
        self._found = self._found or bool(new)
        self._queue.extend(new)


def _rest(passes: int) -> float:
    """Seconds to wait after so many passes in vain: full jitter, up to 2 s."""
    return random.uniform(0.0, min(2.0, 0.1 * 2 ** (passes - 1)))  # noqa: S311  # no secret
