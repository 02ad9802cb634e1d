"""async_claim_each() is claim_each(), awaited."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from sa_doclock import (
    AsyncLockingSession,
    LockingSession,
    LockMisuse,
    LockOptions,
    async_claim_each,
    claim_each,
)
from tests.integration.asyncio.drivers import in_a_loop
from tests.integration.claims.jobs import NEW, STATES, Job, Step, run
from tests.integration.claims.loops import Factory, factory, next_of
from tests.support.databases import Database

Run = Callable[..., list[Any]]
both = pytest.mark.parametrize("batch", [1, 4])


@both
@in_a_loop
async def test_each_row_comes_up_once(documents: Database, elsewhere: Run, batch: int) -> None:
    async with factory(documents) as make_session:
        claims = async_claim_each(make_session, NEW, batch=batch)
        keys = []
        async for claim in claims:
            async with claim as job:
                assert isinstance(claim.session, AsyncLockingSession)
                held = claim.session.held_locks
                assert held[Job, (claim.key,)] is LockOptions.ForUpdate
                assert job in claim.session
                keys.append(claim.key)
                run(job)
        assert keys == list(range(1, 11))
        assert claims.report.processed == 10
    assert {state for _, state in elsewhere(STATES)} == {"done"}


@both
@in_a_loop
async def test_exceptions_are_collected(documents: Database, elsewhere: Run, batch: int) -> None:
    async with factory(documents) as make_session:
        claims = async_claim_each(make_session, NEW, on_error="collect", batch=batch)
        async for claim in claims:
            async with claim as job:
                run(job)
                await claim.session.flush()
                if claim.key in (2, 5):
                    raise LookupError
    assert [key for key, state in elsewhere(STATES) if state == "new"] == [2, 5]
    assert [key for key, _ in claims.report.failed] == [2, 5]


@both
@in_a_loop
async def test_an_exception_comes_out(documents: Database, elsewhere: Run, batch: int) -> None:
    async with factory(documents) as make_session:
        with pytest.raises(LookupError):  # noqa: PT012
            async for claim in async_claim_each(make_session, NEW, batch=batch):
                async with claim as job:
                    run(job)
                    if claim.key == 2:
                        raise LookupError
    assert elsewhere(STATES.limit(2)) == [(1, "done"), (2, "new")]


@pytest.mark.not_databases("sqlite")
@in_a_loop
async def test_tasks_share_the_work(documents: Database, elsewhere: Run) -> None:
    async def work(make_session: Factory) -> int:
        claims = async_claim_each(make_session, NEW, until_empty=True)
        async for claim in claims:
            async with claim as job:
                run(job)
        return claims.report.processed

    async with factory(documents) as make_session:
        done = await asyncio.gather(*(work(make_session) for _ in range(4)))
    assert sum(done) == 10
    assert elsewhere(sa.select(Job.runs).distinct()) == [(1,)]


@pytest.mark.not_databases("sqlite")
@in_a_loop
async def test_rests_are_awaited(documents: Database, session: LockingSession) -> None:
    session.get_one_entity(Job, 2, LockOptions.ForUpdate)
    naps: list[float] = []

    async def nap(seconds: float) -> None:
        naps.append(seconds)
        session.rollback()

    async with factory(documents) as make_session:
        claims = async_claim_each(make_session, NEW, until_empty=True, sleep=nap)
        async for claim in claims:
            async with claim as job:
                run(job)
    assert (len(naps), claims.report.processed) == (1, 10)


@in_a_loop
async def test_a_coroutine_runs_after_the_commit(documents: Database, elsewhere: Run) -> None:
    seen: list[Any] = []

    async def look() -> None:
        seen.extend(elsewhere(STATES.limit(1)))

    async with factory(documents) as make_session:
        async for claim in async_claim_each(make_session, NEW, limit=1):
            async with claim as job:
                run(job)
                claim.session.on_commit(look)
    assert seen == [(1, "done")]


@in_a_loop
async def test_joined_rows_and_misuse(documents: Database) -> None:
    async with factory(documents) as make_session:
        statement = sa.select(Job).join(Job.steps).where(Step.done == sa.false())
        claims = async_claim_each(make_session, statement)
        async for claim in claims:
            async with claim:
                with pytest.raises(LockMisuse):
                    await next_of(claims)
        assert claims.report.processed == 3
        with pytest.raises(LockMisuse, match="has ended"):
            await claim.__aenter__()


@in_a_loop
async def test_factories_of_other_sessions(documents: Database) -> None:
    async with factory(documents) as make_session:
        for maker in (AsyncSession, LockingSession):
            with pytest.raises(TypeError, match="async_sessionmaker"):
                await next_of(async_claim_each(maker, NEW))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="makes a AsyncLockingSession"):
            next(claim_each(make_session, NEW))  # type: ignore[arg-type]


def test_the_arguments_are_the_same() -> None:
    ours = inspect.signature(async_claim_each).parameters
    theirs = inspect.signature(claim_each).parameters
    assert list(ours) == list(theirs)
    for name in set(ours) - {"session_factory", "sleep"}:
        assert ours[name] == theirs[name]
