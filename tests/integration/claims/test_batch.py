"""Several rows per transaction: the statements sent, and the work that an error undoes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import sessionmaker

from sa_doclock import (
    AsyncLockingSession,
    LockingSession,
    LockMisuse,
    LockOptions,
    async_claim_each,
    claim_each,
)
from tests.integration.asyncio.drivers import in_a_loop
from tests.integration.claims.jobs import NEW, STATES, Job, Step, factory, next_of, run
from tests.integration.claims.jobs import Factory as AsyncFactory
from tests.integration.locking.steps import finds_held, locks, locks_rows, recorded
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.waits import wait_until_blocked

ForUpdate = LockOptions.ForUpdate


Factory = sessionmaker[LockingSession]
Run = Callable[..., list[Any]]


def work(factory: Factory, statement: Any = NEW, **how: Any) -> Any:
    claims = claim_each(factory, statement, **how)
    for claim in claims:
        with claim as job:
            run(job)
    return claims.report


def counted(engine: sa.Engine, work: Callable[[], Any]) -> dict[str, int]:
    """Count the statements by their first word, and the commits."""
    counts: dict[str, int] = {}

    def commit(_: object) -> None:
        counts["commit"] = counts.get("commit", 0) + 1

    event.listen(engine, "commit", commit)
    with recorded(engine) as statements:
        work()
    event.remove(engine, "commit", commit)
    for statement in statements:
        if "CURRENT_TRANSACTION_ID" in statement:
            continue  # SQL Server sends it once per transaction
        word = statement.split()[0]
        counts[word] = counts.get(word, 0) + 1
    return counts


def only_locks(engine: sa.Engine, counts: dict[str, int]) -> None:
    """SQLite has a statement for its lock; MySQL and MariaDB set the level of its transaction."""
    sets_level = engine.dialect.name in ("mysql", "mariadb")
    assert counts.pop("SET", 0) == (counts["SELECT"] - 1 if sets_level else 0)
    assert counts.pop("BEGIN", 0) == (
        0 if engine.dialect.name != "sqlite" else counts["SELECT"] - 1
    )


def only_savepoints(engine: sa.Engine, counts: dict[str, int], number: int) -> None:
    """SQL Server is asked whether a transaction began, and does not release savepoints."""
    words = ("IF", "SAVE") if engine.dialect.name == "mssql" else ("SAVEPOINT", "RELEASE")
    assert [counts.pop(word) for word in words] == [number, number]


def test_a_claim_is_one_lock_and_one_commit(session_factory: Factory, engine: sa.Engine) -> None:
    work(session_factory, limit=1)  # caches that the table is not a view and has row locks
    counts = counted(engine, lambda: work(session_factory))
    only_locks(engine, counts)
    assert counts == {"SELECT": 1 + 9, "UPDATE": 9, "commit": 1 + 9}


def test_a_batch_is_one_lock_and_one_commit(session_factory: Factory, engine: sa.Engine) -> None:
    work(session_factory, limit=1)
    counts = counted(engine, lambda: work(session_factory, batch=5))
    only_locks(engine, counts)
    only_savepoints(engine, counts, 9)
    assert counts == {"SELECT": 1 + 2, "UPDATE": 9, "commit": 1 + 2}


def test_conditions_on_other_rows_cost_a_statement_more(
    session_factory: Factory, engine: sa.Engine
) -> None:
    unfinished = sa.select(Job).where(Job.steps.any(Step.done == sa.false()))
    work(session_factory, unfinished, limit=1)
    counts = counted(engine, lambda: work(session_factory, unfinished))
    assert counts["SELECT"] == 1 + (3 if engine.dialect.name == "sqlite" else 6)


def test_a_batch_is_committed_when_its_last_block_ends(
    session_factory: Factory, elsewhere: Run
) -> None:
    seen = []
    for claim in claim_each(session_factory, NEW, batch=4):
        with claim as job:
            run(job)
        if claim.key in (3, 4):
            seen.append([key for key, state in elsewhere(STATES) if state == "done"])
    assert seen == [[], [1, 2, 3, 4]]


@pytest.mark.not_databases("sqlite")
def test_all_rows_of_a_batch_are_held_until_then(
    session_factory: Factory, other: LockingSession
) -> None:
    for claim in claim_each(session_factory, NEW, batch=4, limit=4):
        held = [finds_held(Job, ident)(other) for ident in (1, 2, 3, 4, 5)]
        assert held == [True, True, True, True, False]
        with claim as job:
            run(job)
    assert not finds_held(Job, 1)(other)


def test_a_row_that_is_not_entered_stays_as_it_was(
    session_factory: Factory, elsewhere: Run
) -> None:
    claims = claim_each(session_factory, NEW, batch=5)
    for claim in claims:
        if claim.key not in (2, 10):
            with claim as job:
                run(job)
    states = dict(elsewhere(STATES))
    assert {key for key, state in states.items() if state == "new"} == {2, 10}
    assert (claims.report.processed, claims.report.given_back) == (8, 2)


def test_the_rows_of_a_batch_come_up_in_the_order_that_was_asked_for(
    session_factory: Factory,
) -> None:
    keys = [claim.key for claim in claim_each(session_factory, NEW, order_by=-Job.id, batch=4)]
    assert keys == list(range(10, 0, -1))


@pytest.mark.not_databases("sqlite")
def test_a_batch_that_queues_has_locked_in_the_order_of_the_keys(
    session_factory: Factory, alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    alice.does(locks(Job, 2))
    batches = {"batch": 10, "lock_timeout": 20}
    step = bob.starts(lambda _: work(session_factory, NEW, order_by=-Job.id, **batches))
    wait_until_blocked(waiter=bob, holder=alice, step=step)
    assert alice.does(finds_held(Job, 1))
    assert step.result().processed == 10


@pytest.mark.not_databases("sqlite")
def test_a_batch_locks_no_rows_but_its_own(
    session_factory: Factory, other: LockingSession, elsewhere: Run
) -> None:
    """InnoDB locks every row that it reads: through an index on the state, all new jobs."""
    elsewhere(
        sa.insert(Job).values([{"id": n, "state": "new", "weight": 1} for n in range(11, 60)])
    )
    with claim_each(session_factory, NEW, batch=50) as claims:
        next(claims)
        free = other.scalars(
            other.entity_set(Job, ForUpdate | LockOptions.SkipLocked).order_by(Job.id)
        )
        assert [job.id for job in free] == list(range(51, 60))


@pytest.mark.not_databases("sqlite")
def test_a_batch_that_queues_does_not_wait_for_other_rows(
    session_factory: Factory, engine: sa.Engine, other: LockingSession, elsewhere: Run
) -> None:
    """InnoDB would read and wait for all rows of a table if it needs most of them."""
    many = [{"id": n, "state": "new", "weight": 1} for n in range(11, 60)]
    elsewhere(sa.insert(Job).values(many))
    other.get_one_entity(Job, 59, ForUpdate)
    with claim_each(session_factory, NEW, batch=50, lock_timeout=0) as claims:
        with recorded(engine) as statements:
            next(claims)
        assert claims.report.skipped == 0
    assert len([statement for statement in statements if locks_rows(statement)]) == 1


# --------------------------------------------------------------------------------------------------
# async_claim_each() is claim_each(), awaited.

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
    async def work(make_session: AsyncFactory) -> int:
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
