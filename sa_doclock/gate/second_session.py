"""The sessions of one task, or thread, that hold a lock: a second one would wait for a connection."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from sqlalchemy.pool import NullPool, Pool, SingletonThreadPool, StaticPool


class TaskSession:
    """One session, as the others of its task see it."""

    def __init__(self, gate: object) -> None:
        self.gate = gate
        self.pools: frozenset[Pool] = frozenset()
        self.document = ""
        self._thread = 0
        self._task: weakref.ref[asyncio.Task[Any]] | None = None

    def hold(self, document: str, pools: Iterable[Pool]) -> None:
        """Note a lock that was granted in this task and thread, on connections of these pools."""
        if not self.pools:
            self.document = document
        self.pools = frozenset(pools)
        task = _task()
        self._thread = threading.get_ident()
        self._task = None if task is None else weakref.ref(task)
        known = _here.get()
        if self not in known:
            # Another tuple: a context that was copied before does not see it.
            _here.set((*(other for other in known if other.pools), self))

    def hold_nothing(self) -> None:
        """Note that all locks are released, in whatever task that was done."""
        self.pools = frozenset()

    def others(self) -> Iterator[TaskSession]:
        """Return the others of this task and thread that hold a lock."""
        return (one for one in _here.get() if one is not self and one.pools and one.is_here)

    @property
    def is_here(self) -> bool:
        """Return whether its last lock was taken in this task and thread."""
        task = None if self._task is None else self._task()
        return self._thread == threading.get_ident() and task is _task()


def can_be_exhausted(pool: Pool) -> bool:
    """Return whether a session may have to wait for a connection of this pool.

    A StaticPool and a SingletonThreadPool give one connection to all who come, and a NullPool
    makes one for each.  A QueuePool of max_overflow=-1 or pool_size=0 has no limit, but no public
    attribute says so: it counts as one that has.
    """
    return not isinstance(pool, (NullPool, SingletonThreadPool, StaticPool))


# A context variable, so that a thread of a pool, or a task that was started while a lock is held,
# does not count as the one that has taken it.
_here: ContextVar[tuple[TaskSession, ...]] = ContextVar("sa_doclock.here", default=())


def _task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        return None
