"""The keys of the rows that may be claimed, read page by page and pass by pass."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Select

from ..keys import Identity
from .query import ClaimQuery
from .report import ReportBuilder

_PAGE: Final = 1_000  # keys per read, kept in addition to the remembered ones
_SPARE_KEYS: Final = 100  # read beyond the limit: others may hold or process some rows
_FAILED_TRIES: Final = 3  # in a row: other workers are busy with the same rows
_LOOK_AHEAD: Final = 200
KEYS_AT_ONCE: Final = 100  # looked up together in the table of check-outs


def page_for(limit: int | None) -> int:
    """Return the number of keys for one read, for at most this many claims."""
    return _PAGE if limit is None else min(_PAGE, limit + _SPARE_KEYS)


Read = Callable[[Select[Any]], Sequence[Identity]]


@dataclass(eq=False)
class Candidates:
    """The queue of keys to claim; each key is offered once in a pass.

    If other workers claim the same rows, the queue continues at another place of the page, unless
    the caller asked for an order: 8 workers that stay together send five times as many statements.

    In key order, a page begins after the last key of the previous page.  In another order, earlier
    keys may precede the next page, and are read again.

    :param read: reads keys, in a transaction of its own.
    :param attempts: the queue ends after so many passes in a row without a claim.
    """

    query: ClaimQuery
    read: Read
    builder: ReportBuilder
    page: int
    until_empty: bool = False
    attempts: int = 1
    sleep: Callable[[float], object] = time.sleep

    _queue: deque[Identity] = field(default_factory=deque)
    _last_page_read: bool = False
    _ended: bool = False
    _after: Identity | None = None  # in key order: the last key that was read
    _seen: set[Identity] = field(default_factory=set)  # in any other order: the keys of this pass
    _reread: int = 0  # the number of them that the next read may return again
    _found_any: bool = False
    _settled_before: int = 0
    _failed_passes: int = 0
    _failed_tries: int = 0

    def take(self, count: int) -> list[Identity]:
        """Remove up to this many keys from the queue and return them; [] at the end."""
        if self._failed_tries >= _FAILED_TRIES:
            self._look_ahead()
        while not self._queue:
            if self._ended:
                return []
            if not self.builder.report.passes:
                self._begin_pass()
            elif self._last_page_read:
                self.builder.end_pass()
                again = self.until_empty and self._found_any and self._may_try_again()
                self._ended = not again
                if again:
                    self._begin_pass()
            else:
                self._read_page()
        return [self._queue.popleft() for _ in range(min(count, len(self._queue)))]

    def requeue(self, keys: Iterable[Identity]) -> None:
        """Return unused keys to the front of the queue."""
        self._queue.extendleft(reversed(list(keys)))

    def skip(self, find_taken: Callable[[Sequence[Identity]], Collection[Identity]]) -> None:
        """Skip leading keys that this function returns, until one of its batch is left."""
        while self._queue:
            keys = [self._queue.popleft() for _ in range(min(KEYS_AT_ONCE, len(self._queue)))]
            taken = find_taken(keys)
            self.builder.skipped(taken)
            self.requeue(key for key in keys if key not in taken)
            if len(taken) < len(keys):
                return

    def note_try(self, *, claimed: bool) -> None:
        """Record whether any of the keys taken last could be claimed."""
        self._failed_tries = 0 if claimed else self._failed_tries + 1

    def _look_ahead(self) -> None:
        """Drop the keys that others have processed, by one read; continue elsewhere than the others."""
        self._failed_tries = 0
        if not self._queue:
            return
        if not self.query.order:
            self._queue.rotate(-random.randrange(len(self._queue)))  # noqa: S311
        keys = [self._queue.popleft() for _ in range(min(_LOOK_AHEAD, len(self._queue)))]
        matching = set(self.read(self.query.matching(keys)))
        self.builder.no_longer_matching(key for key in keys if key not in matching)
        self.requeue(key for key in keys if key in matching)

    def _begin_pass(self) -> None:
        self.builder.begin_pass()
        self._last_page_read = self._found_any = False
        self._after, self._reread = None, 0
        self._seen.clear()
        self._settled_before = len(self.builder.settled)

    def _may_try_again(self) -> bool:
        """Sleep after a pass without a claim; return False after the last attempt."""
        if len(self.builder.settled) > self._settled_before:
            self._failed_passes = 0
            return True
        self._failed_passes += 1
        if self._failed_passes >= self.attempts:
            return False
        self.sleep(_backoff(self._failed_passes))
        return True

    def _read_page(self) -> None:
        size = self.page + self._reread
        rows = self.read(self.query.page(size, self._after))
        self._last_page_read = len(rows) < size
        settled, seen = self.builder.settled, self._seen
        new = [key for key in dict.fromkeys(rows) if key not in settled and key not in seen]
        if not self.query.order:
            self._after = rows[-1] if rows else self._after
        else:
            self._reread = len(rows) - len(new) if new else size
            self._seen.update(new)
        self._found_any = self._found_any or bool(new)
        self._queue.extend(new)


def _backoff(failed_passes: int) -> float:
    return random.uniform(0.0, min(2.0, 0.1 * 2 ** (failed_passes - 1)))  # noqa: S311  # no secret
