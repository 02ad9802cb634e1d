"""A batch under asyncio: its loop goes on while it pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from sa_doclock import AsyncLockingSession, LockNotAvailable, LockOptions
from sa_doclock.features import batch as batches
from tests.integration.asyncio.drivers import connected, drivers_of, in_a_loop, url_for
from tests.integration.batch.batches import seeing_tries
from tests.support.databases import Database
from tests.support.models import Order

ForUpdate = LockOptions.ForUpdate
Session = AsyncLockingSession
Play = Callable[[AsyncEngine, Session, Session], Awaitable[None]]


def by_each_driver(play: Play) -> Any:
    """Play this with a session that holds order 1, and a batch."""

    @in_a_loop
    async def test(documents: Database) -> None:
        for driver in drivers_of(documents.column):
            url = url_for(documents, driver)
            async with (
                connected(url) as engine,
                Session(engine) as holder,
                Session(engine, priority="batch") as batch,
            ):
                await holder.get_one_entity(Order, 1, ForUpdate)
                await play(engine, holder, batch)

    return test


async def _granted_in_the_end(engine: AsyncEngine, holder: Session, batch: Session) -> None:
    with seeing_tries(engine.sync_engine) as tries:
        trying = asyncio.ensure_future(batch.get_one_entity(Order, 1, ForUpdate))
        await asyncio.to_thread(tries.wait_for, 1, each=3)  # this loop turns, or there were none
        assert not trying.done()
        await holder.rollback()
        assert (await trying).total == 30
    assert list(batch.held_locks) == [(Order, (1,))]


async def _given_up(_: AsyncEngine, __: Session, batch: Session) -> None:
    with pytest.raises(LockNotAvailable, match=r"not granted within 0\.05 s") as caught:
        await batch.get_one_entity(Order, 1, ForUpdate, lock_timeout=0.05)
    assert caught.value.waited  # less the time to take the connection
    with pytest.raises(LockNotAvailable, match=r"not granted within 0\.05 s"):
        await batch.scalars(batch.entity_set(Order, ForUpdate, lock_timeout=0.05))
    assert not batch.in_transaction()


async def _alongside(_: AsyncEngine, holder: Session, batch: Session) -> None:
    turns: list[int] = [0]
    during: list[int] = []
    original = batches.pause

    async def work() -> None:
        while True:
            await asyncio.sleep(0)
            turns[0] += 1

    paused = asyncio.Event()

    def pause(seconds: float, **how: Any) -> None:
        before = turns[0]
        original(seconds, **how)
        during.append(turns[0] - before)
        paused.set()

    working = asyncio.ensure_future(work())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "pause", pause)
        trying = asyncio.ensure_future(batch.get_one_entity(Order, 1, ForUpdate))
        once = asyncio.ensure_future(paused.wait())
        await asyncio.wait([trying, once], return_when=asyncio.FIRST_COMPLETED)
        once.cancel()
        await holder.rollback()
        await trying
    working.cancel()
    assert during
    assert all(during)


async def _cancelled(engine: AsyncEngine, holder: Session, batch: Session) -> None:
    with seeing_tries(engine.sync_engine) as tries:
        trying = asyncio.ensure_future(batch.get_one_entity(Order, 1, ForUpdate))
        await asyncio.to_thread(tries.wait_for, 1)
        trying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await trying
    await batch.rollback()
    await holder.rollback()
    async with Session(engine) as other:
        await other.get_one_entity(Order, 1, ForUpdate | LockOptions.NoWait)


test_it_is_granted_in_the_end = by_each_driver(_granted_in_the_end)
test_it_is_given_up_when_its_limit_is_over = by_each_driver(_given_up)
test_others_of_the_loop_go_on_while_it_pauses = by_each_driver(_alongside)
test_it_can_be_cancelled = by_each_driver(_cancelled)
