"""An asynchronous loop that is left early, or whose task is cancelled, holds nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import async_claim_each
from tests.integration.asyncio.drivers import in_a_loop
from tests.integration.claims.jobs import NEW, STATES, Job, run
from tests.integration.claims.loops import Factory, factory, next_of
from tests.support.databases import Database

Run = Callable[..., list[Any]]


async def leave_by_break(claims: Any) -> None:
    async for _ in claims:
        break
    await asyncio.sleep(0)  # the event loop is notified of the generator, and begins to close it
    current = asyncio.current_task()
    await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not current))


async def leave_by_with(claims: Any) -> None:
    async with claims:
        await next_of(claims)


async def leave_by_aclose(claims: Any) -> None:
    await next_of(claims)
    await claims.aclose()


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_with, leave_by_aclose])
@in_a_loop
async def test_a_loop_that_is_left_holds_nothing(
    documents: Database, elsewhere: Run, leave: Callable[[Any], Any]
) -> None:
    async with factory(documents) as make_session:
        await leave(async_claim_each(make_session, NEW, batch=3))
        elsewhere(sa.update(Job).values(weight=1))


@pytest.mark.parametrize("batch", [1, 4])
@in_a_loop
async def test_a_cancelled_task_holds_nothing(
    documents: Database, elsewhere: Run, batch: int
) -> None:
    inside = asyncio.Event()

    async def work(make_session: Factory) -> None:
        async for claim in async_claim_each(make_session, NEW, batch=batch, on_error="collect"):
            async with claim as job:
                run(job)
                await claim.session.flush()
                if claim.key == 2:
                    inside.set()
                    await asyncio.Event().wait()

    async with factory(documents) as make_session:
        task = asyncio.ensure_future(work(make_session))
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert elsewhere(STATES.limit(2)) == [(1, "done"), (2, "new")]
