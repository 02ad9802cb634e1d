"""Which sessions of one task, or thread, hold a lock: a second one would wait for its connection.

Known by a context variable, so that a thread of a pool, or a task that was started in the midst of
a lock, does not count as the one that has taken it.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from sqlalchemy.pool import Pool


class Holder:
    """One session, as the others of its task see it."""

    def __init__(self, gate: object) -> None:
        self.gate = gate
        self.pools: frozenset[Pool] = frozenset()
        self.document = ""
        self._here: _Here | None = None

    def holds(self, document: str, pools: Iterable[Pool]) -> None:
        """It has been granted a lock, in this task and thread; its connections are of these."""
        here = _get()
        if here is None:
            here = _Here()
            _here.set(here)
        if here is not self._here:
            self.holds_nothing()
            self._here, self.document = here, document
            here.holders[self] = None
        self.pools = frozenset(pools)

    def holds_nothing(self) -> None:
        """All is given up, wherever that was done."""
        here, self._here = self._here, None
        self.pools = frozenset()
        if here is not None:
            here.holders.pop(self, None)

    def beside(self) -> Iterator[Holder]:
        """The others of this task and thread that hold something."""
        here = _get()
        if here is not None:
            yield from (other for other in tuple(here.holders) if other is not self)


class _Here:
    """A task, or a thread in which none runs."""

    def __init__(self) -> None:
        task = _task()
        self._task = None if task is None else weakref.ref(task)
        self._thread = threading.get_ident()
        self.holders: dict[Holder, None] = {}

    @property
    def is_now(self) -> bool:
        task = None if self._task is None else self._task()
        return task is _task() and self._thread == threading.get_ident()


_here: ContextVar[_Here | None] = ContextVar("sa_doclock.here", default=None)


def _get() -> _Here | None:
    here = _here.get()
    return here if here is not None and here.is_now else None


def _task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        return None
