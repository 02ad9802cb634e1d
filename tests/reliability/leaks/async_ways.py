"""The ways of asyncio: one coroutine function is one cycle."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from sa_doclock import (
    AsyncLockingSession,
    LockNotAvailable,
    LockOptions,
    async_claim_each,
    async_run_transaction,
)
from sa_doclock.tools.cli.workload.tables import Document
from tests.reliability.leaks.scene import Scene, Way

FOR_UPDATE, SHARED = LockOptions.ForUpdate, LockOptions.SharedRead


@dataclass
class AsyncScene(Scene):
    """The same, with sessions for asyncio and the loop that they run in."""

    async_engine: AsyncEngine | None = None
    loop: asyncio.AbstractEventLoop | None = None

    @property
    def async_sessions(self) -> async_sessionmaker[AsyncLockingSession]:
        """Return the factory of the sessions."""
        return async_sessionmaker(self.async_engine, class_=AsyncLockingSession)

    def run(self, awaitable: Awaitable[Any]) -> None:
        """Run it to its end."""
        assert self.loop is not None

        async def to_its_end() -> None:
            await awaitable

        self.loop.run_until_complete(to_its_end())


AsyncWay = Callable[[AsyncScene], Awaitable[None]]


async def change_and_save(scene: AsyncScene) -> None:
    async with scene.async_sessions() as session:
        document = await session.get_document(Document, scene.ident, FOR_UPDATE)
        assert document is not None
        document.details[0].value += 1
        document.add_up()
        await session.save_changes()


async def a_block(scene: AsyncScene) -> None:
    async with (
        scene.async_sessions() as session,
        session.locked(Document, scene.ident, lock_timeout=scene.seconds) as document,
    ):
        document.total += 0


async def a_set(scene: AsyncScene) -> None:
    async with scene.async_sessions() as session:
        await session.lock_key("leaks")
        await session.get_entities(Document, (0, 1), SHARED)
        wanted = session.entity_set(Document, FOR_UPDATE).where(Document.id > 1)
        assert (await session.scalars(wanted)).all()


async def claims(scene: AsyncScene) -> None:
    wanted = sa.select(Document).where(Document.id >= scene.ident)
    async for claim in async_claim_each(scene.async_sessions, wanted, limit=2):
        async with claim as document:
            document.total += 0


async def a_function(scene: AsyncScene) -> None:
    async def lock(session: AsyncLockingSession) -> None:
        await session.get_one_entity(Document, scene.ident, FOR_UPDATE)

    await async_run_transaction(scene.async_sessions, lock)


async def held_by_another(scene: AsyncScene) -> None:
    async with scene.async_sessions() as holder, scene.async_sessions() as session:
        await holder.get_one_entity(Document, scene.ident, FOR_UPDATE)
        with pytest.raises(LockNotAvailable):
            await session.get_entity(Document, scene.ident, FOR_UPDATE, lock_timeout=0.001)


async def the_block(scene: AsyncScene) -> None:
    with pytest.raises(LookupError):
        async with scene.async_sessions() as session, session.locked(Document, scene.ident):
            raise LookupError


async def a_waiter_that_is_cancelled(scene: AsyncScene) -> None:
    """On SQLite it would wait in the driver's thread, which nobody can cancel."""
    if scene.database.name == "sqlite":
        return
    async with scene.async_sessions() as holder:
        await holder.get_one_entity(Document, scene.ident, FOR_UPDATE)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(a_block(scene), 0.02)
    # It depends on the moment whether the connection is given up: both are there again, with the same statements.
    await held_by_another(scene)


def as_way(way: AsyncWay) -> Way:
    """Make a cycle of it that ends when the coroutine has."""

    def run(scene: Scene) -> None:
        assert isinstance(scene, AsyncScene)
        scene.run(way(scene))

    run.__name__ = getattr(way, "__name__", "")
    return run


ASYNC_WAYS = tuple(map(as_way, (change_and_save, a_block, a_set, claims, a_function)))
ASYNC_FAILURES = tuple(map(as_way, (held_by_another, the_block)))

#: asyncpg keeps 1.5 kB, which Python knows nothing of, for each statement that it cancels: so it
#: does for an AsyncSession of SQLAlchemy's own.
RARE_ASYNC_FAILURES = (as_way(a_waiter_that_is_cancelled),)
