"""async_lease_each(): lease_each(), awaited, with one heartbeat task for each event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, suppress
from datetime import timedelta
from typing import Any, Generic, TypeVar, overload
from weakref import WeakKeyDictionary

from sqlalchemy import Select
from sqlalchemy.util import greenlet_spawn

from ..checkout_info import Checkout
from ..claims import FIVE_MINUTES, ClaimReport, Lease, Leases, Schedule, check_factory
from .claims import AsyncSessions
from .session import AsyncLockingSession, entered

T = TypeVar("T")


class HeartbeatTask:
    """The task of one event loop that renews its leases, while there are any."""

    def __init__(self) -> None:
        self._schedule = Schedule()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, lease: Lease[Any]) -> None:
        """Renew this lease from now on."""
        self._schedule.add(lease)
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="sa_doclock leases")

    def remove(self, lease: Lease[Any]) -> None:
        """Stop renewing it; a renewal in progress may still end."""
        self._schedule.pop(lease, None)
        self._changed.set()

    async def _run(self) -> None:
        try:
            while self._schedule:
                due = self._schedule.due()
                if not due:
                    self._changed.clear()
                    with suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(self._changed.wait(), self._schedule.pause())
                for lease in due:
                    await self._renew(lease)
        finally:
            # The task refers to the loop: this frees it.
            _tasks.pop(asyncio.get_running_loop(), None)

    async def _renew(self, lease: Lease[Any]) -> None:
        if lease not in self._schedule:
            return
        try:
            await greenlet_spawn(lease.renew)
        except Exception as error:  # noqa: BLE001  # the task serves the other leases too
            self._schedule.note_failed(lease, error)
        else:
            self._schedule.note_renewed(lease)


# Global: one task per event loop.
# Threads: a loop runs in one thread, and setdefault() of a dict is atomic.
_tasks: WeakKeyDictionary[asyncio.AbstractEventLoop, HeartbeatTask] = WeakKeyDictionary()


def _heartbeat() -> HeartbeatTask:
    return _tasks.setdefault(asyncio.get_running_loop(), HeartbeatTask())


class AsyncLease(Generic[T]):
    """A :class:`Lease` in an event loop: ``async with lease:``, once."""

    def __init__(self, lease: Lease[T]) -> None:
        self._lease = lease
        self.key = lease.key
        self.row = lease.row

    @property
    def checkout(self) -> Checkout:
        """See :attr:`Lease.checkout`."""
        return self._lease.checkout

    @property
    def lost(self) -> bool:
        """See :attr:`Lease.lost`."""
        return self._lease.lost

    async def renew(self) -> Checkout:
        """See :meth:`Lease.renew`."""
        return await greenlet_spawn(self._lease.renew)

    def saving(self) -> AbstractAsyncContextManager[T]:
        """``async with lease.saving() as row:``; see :meth:`Lease.saving`."""
        return entered(self._lease.saving())

    async def __aenter__(self) -> AsyncLease[T]:
        self._lease.enter()
        _heartbeat().add(self._lease)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        _heartbeat().remove(self._lease)
        await greenlet_spawn(self._lease.leave, error)


class AsyncLeases(Generic[T]):
    """The asynchronous iterator that async_lease_each() returns, with a report."""

    def __init__(self, leases: Leases[T]) -> None:
        self._leases = leases

    @property
    def report(self) -> ClaimReport:
        """The results so far; you can read them at any time."""
        return self._leases.report

    async def __aiter__(self) -> AsyncIterator[AsyncLease[T]]:
        try:
            while (lease := await self._next()) is not None:
                yield lease
        finally:
            await self.aclose()

    async def __anext__(self) -> AsyncLease[T]:
        lease = await self._next()
        if lease is None:
            raise StopAsyncIteration
        return lease

    async def _next(self) -> AsyncLease[T] | None:
        lease = await greenlet_spawn(next, self._leases, None)
        return None if lease is None else AsyncLease(lease)

    async def aclose(self) -> None:
        """See :meth:`Leases.close`."""
        await greenlet_spawn(self._leases.close)


@overload
def async_lease_each(
    session_factory: Callable[[], AsyncLockingSession],
    statement: Select[tuple[T]],  # SQLAlchemy 2.0
    *,
    owner: str,
    lease: timedelta | float = ...,
    note: str | None = ...,
    limit: int | None = ...,
    order_by: Any = ...,
) -> AsyncLeases[T]: ...


@overload
def async_lease_each(
    session_factory: Callable[[], AsyncLockingSession],
    statement: Select[T],  # SQLAlchemy 2.1
    *,
    owner: str,
    lease: timedelta | float = ...,
    note: str | None = ...,
    limit: int | None = ...,
    order_by: Any = ...,
) -> AsyncLeases[T]: ...


def async_lease_each(
    session_factory: Callable[[], AsyncLockingSession],
    statement: Select[Any],
    *,
    owner: str,
    lease: timedelta | float = FIVE_MINUTES,
    note: str | None = None,
    limit: int | None = None,
    order_by: Any = None,
) -> AsyncLeases[Any]:
    """Return an asynchronous iterator of leases; see :func:`lease_each`.

    The heartbeat is one task for all leases of the event loop: work that blocks the loop for longer
    than two thirds of the lease may lose it.

    Example::

        jobs = select(Job).where(Job.state == "new")
        async for lease in async_lease_each(AsyncSession, jobs, owner="worker-1"):
            async with lease, lease.saving() as job:
                job.state = "done"

    :param session_factory: makes new :class:`AsyncLockingSession` objects, with ``checkouts=``.
    """
    check_factory(session_factory, "lease_each()")
    leases: Leases[Any] = Leases(
        AsyncSessions(session_factory, "async_lease_each"),
        statement,
        owner=owner,
        lease=lease,
        note=note,
        limit=limit,
        order_by=order_by,
    )
    return AsyncLeases(leases)
