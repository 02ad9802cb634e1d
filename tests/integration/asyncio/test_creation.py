"""get_or_create_entity(), awaited."""

from __future__ import annotations

import asyncio

import sqlalchemy as sa

from sa_doclock import AsyncLockingSession
from tests.integration.asyncio.drivers import connected, in_a_loop
from tests.support.models import Order

CALLERS = 12


@in_a_loop
async def test_twelve_tasks_at_once_get_one_row(url: sa.URL) -> None:
    async def call() -> bool:
        async with AsyncLockingSession(engine) as session:
            order, created = await session.get_or_create_entity(
                Order, 7, defaults=lambda: Order(total=0), lock_timeout=20
            )
            order.total += 1
            await session.save_changes()
            return created

    async with connected(url, pool_size=CALLERS) as engine:
        assert sum(await asyncio.gather(*(call() for _ in range(CALLERS)))) == 1
        async with AsyncLockingSession(engine) as session:
            assert (await session.get_one(Order, 7)).total == CALLERS
