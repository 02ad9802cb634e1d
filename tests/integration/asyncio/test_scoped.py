"""An AsyncLockingScopedSession has a session with its own locks for each task."""

from __future__ import annotations

import asyncio

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import async_sessionmaker

from sa_doclock import AsyncLockingScopedSession, AsyncLockingSession, LockOptions
from tests.integration.asyncio.drivers import connected, in_a_loop
from tests.support.models import Order

FOR_UPDATE, NO_WAIT = LockOptions.ForUpdate, LockOptions.ForUpdate | LockOptions.NoWait
Scoped = AsyncLockingScopedSession[AsyncLockingSession]


@in_a_loop
async def test_each_task_has_its_own_locks_and_one_waits_for_the_other(url: sa.URL) -> None:
    async with connected(url) as engine:
        scoped = AsyncLockingScopedSession(
            async_sessionmaker(engine, class_=AsyncLockingSession), asyncio.current_task
        )

        async def add_one() -> None:
            async with scoped.locked(Order, 1) as order:
                assert dict(scoped.held_locks) == {(Order, (1,)): FOR_UPDATE}
                await asyncio.sleep(0)  # the other task runs, and waits
                order.total += 1
            await scoped.remove()

        await asyncio.gather(*(add_one() for _ in range(4)))
        assert (await scoped.get_one(Order, 1)).total == 34
        await scoped.remove()
        assert not scoped.registry.registry


@in_a_loop
async def test_every_method_is_that_of_the_session(url: sa.URL) -> None:
    async with connected(url) as engine:
        scoped = AsyncLockingScopedSession(
            async_sessionmaker(engine, class_=AsyncLockingSession), asyncio.current_task
        )
        events: list[str] = []
        order = await scoped.get_one_entity(Order, 1)
        assert not scoped.held_locks
        await scoped.rollback()
        assert await scoped.lock(order, FOR_UPDATE) is order
        assert await scoped.get_entity(Order, 1, FOR_UPDATE) is order
        found = await scoped.get_entities(Order, [2, 1], order="given")
        assert [one.id for one in found] == [2, 1]
        await scoped.release_locks()
        async with scoped.locked_document(Order, 1) as order:
            assert "lines" in vars(order)
            assert await scoped.get_document(Order, 1) is await scoped.get_one_document(Order, 1)
            scoped.on_commit(lambda: events.append("committed"))
        assert events == ["committed"]
        async with scoped.locked_documents(Order, [2, 1]) as (two, one):
            assert [one, two] == await scoped.get_documents(Order, [1, 2])
        await scoped.scalars(scoped.entity_set(Order, FOR_UPDATE))
        assert set(scoped.held_locks) == {(Order, (1,)), (Order, (2,))}
        async with scoped.unguarded():
            one.total = 7
        await scoped.lock_key("prices")
        await scoped.save_changes()
        assert not scoped.held_locks
        assert await scoped.scalar(sa.select(Order.total).where(Order.id == 1)) == 7
        await scoped.remove()
