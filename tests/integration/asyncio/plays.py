"""The actions of asynchronous actors, in the words of the tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sqlalchemy.orm import selectinload

from sa_doclock import AsyncLockingSession, LockOptions
from tests.integration.asyncio.bridge import Bridge, playing
from tests.support.models import Customer, Order

SHARED, FOR_UPDATE = LockOptions.SharedRead, LockOptions.ForUpdate
NO_WAIT, SNAPSHOT = LockOptions.NoWait, LockOptions.SnapshotRead
WITH_LINES = (selectinload(Order.lines),)

Seen = tuple[int, list[int]]
"""The total of order 1, and the values of its lines."""


def seen(order: Order) -> Seen:
    return order.total, [line.value for line in order.lines]


async def add_ten(session: AsyncLockingSession) -> Seen:
    """Lock order 1 and add 10 to it and to its first line; not committed yet."""
    order = await session.get_one_entity(Order, 1, FOR_UPDATE, options=WITH_LINES)
    order.total += 10
    order.lines[0].value += 10
    await session.flush()
    return seen(order)


def reads(lock: LockOptions, lock_timeout: float | None = None) -> Callable[[Bridge], Seen]:
    """Make the step that locks order 1, then reads it with its lines."""

    async def read(session: AsyncLockingSession) -> Seen:
        return seen(
            await session.get_one_entity(
                Order, 1, lock, lock_timeout=lock_timeout, options=WITH_LINES
            )
        )

    return playing(read)


def locks(ident: int) -> Callable[[AsyncLockingSession], Awaitable[Order]]:
    """Make the play that locks this order, and waits for it."""
    return lambda session: session.get_one_entity(Order, ident, FOR_UPDATE)


async def lock_at_once(session: AsyncLockingSession) -> int:
    """Lock order 1 if it is free, and let it go; return its total."""
    total = (await session.get_one_entity(Order, 1, FOR_UPDATE | NO_WAIT)).total
    await session.rollback()
    return total


async def look(session: AsyncLockingSession) -> str:
    """Read what nobody locks."""
    return (await session.get_one(Customer, 1)).name


async def save(session: AsyncLockingSession) -> None:
    await session.save_changes()


async def roll_back(session: AsyncLockingSession) -> None:
    await session.rollback()
