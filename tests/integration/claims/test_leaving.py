"""A loop that is left early holds no lock, and its connection is back in the pool."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import QueuePool

from sa_doclock import Claims, LockingSession, LockMisuse, async_claim_each, claim_each
from tests.integration.asyncio.drivers import in_a_loop
from tests.integration.claims.jobs import NEW, STATES, Job, factory, next_of, run
from tests.integration.claims.jobs import Factory as AsyncFactory
from tests.integration.locking.steps import finds_held
from tests.support.databases import Database

Factory = sessionmaker[LockingSession]
Run = Callable[..., list[Any]]
Free = Callable[[], None]


@pytest.fixture
def free(engine: sa.Engine, elsewhere: Run) -> Iterator[Free]:
    """Return a function that fails if a lock is held; garbage collection is off before."""
    gc.disable()

    def check() -> None:
        assert isinstance(engine.pool, QueuePool)
        assert engine.pool.checkedout() == 0
        elsewhere(sa.update(Job).values(weight=1))

    yield check
    gc.enable()


@pytest.mark.parametrize("batch", [1, 4])
def test_by_break_before_the_block(session_factory: Factory, free: Free, batch: int) -> None:
    claims = claim_each(session_factory, NEW, batch=batch)
    for claim in claims:  # noqa: B007  # used after the loop
        break
    free()
    with pytest.raises(LockMisuse, match="has ended"), claim:
        pytest.fail("entered")
    assert claims.report.given_back == 1


def test_by_break_behind_the_block(session_factory: Factory, free: Free, elsewhere: Run) -> None:
    for claim in claim_each(session_factory, NEW):
        with claim as job:
            run(job)
        break
    free()
    assert elsewhere(STATES.limit(2)) == [(1, "done"), (2, "new")]


def test_by_break_in_the_block(session_factory: Factory, free: Free, elsewhere: Run) -> None:
    for claim in claim_each(session_factory, NEW, batch=3):
        with claim as job:
            run(job)
            break
    free()
    assert elsewhere(STATES.limit(2)) == [(1, "done"), (2, "new")]


def test_in_the_middle_of_a_batch(session_factory: Factory, free: Free, elsewhere: Run) -> None:
    claims = claim_each(session_factory, NEW, batch=5)
    for claim in claims:
        with claim as job:
            run(job)
        if claim.key == 2:
            break
    free()
    assert elsewhere(STATES.limit(3)) == [(1, "done"), (2, "done"), (3, "new")]
    assert claims.report.processed == 2


def test_by_an_exception_outside_of_a_block(session_factory: Factory, free: Free) -> None:
    claims = claim_each(session_factory, NEW)
    with pytest.raises(LookupError):  # noqa: PT012
        for _ in claims:
            raise LookupError
    free()


def test_by_an_exception_in_the_block(session_factory: Factory, free: Free) -> None:
    claims = claim_each(session_factory, NEW, batch=4)
    with pytest.raises(LookupError):  # noqa: PT012
        for claim in claims:
            with claim:
                raise LookupError
    free()


def keys(claims: Claims[Any]) -> Iterator[int]:
    for claim in claims:
        with claim as job:
            run(job)
            yield job.id


def test_by_closing_a_generator(session_factory: Factory, free: Free, elsewhere: Run) -> None:
    generator = keys(claim_each(session_factory, NEW, batch=3))
    assert [next(generator), next(generator)] == [1, 2]
    generator.close()  # type: ignore[attr-defined]
    free()
    assert elsewhere(STATES.limit(2)) == [(1, "done"), (2, "new")]


def test_by_close(session_factory: Factory, free: Free) -> None:
    claims = claim_each(session_factory, NEW)
    next(claims)
    claims.close()
    free()
    claims.close()


def test_at_the_end_of_with(session_factory: Factory, free: Free) -> None:
    with claim_each(session_factory, NEW) as claims:
        next(claims)
    free()


def test_by_an_exception_out_of_with(session_factory: Factory, free: Free) -> None:
    with pytest.raises(LookupError), claim_each(session_factory, NEW) as claims:  # noqa: PT012
        next(claims)
        raise LookupError
    free()


def test_by_nobody_knowing_of_it_any_more(session_factory: Factory, free: Free) -> None:
    claims = claim_each(session_factory, NEW)
    claim = next(claims)
    del claims
    free()
    assert claim.key == 1


def test_a_block_goes_on_when_nobody_knows_of_the_loop_any_more(
    session_factory: Factory, free: Free, elsewhere: Run
) -> None:
    claims = claim_each(session_factory, NEW, batch=3)
    with next(claims) as job:
        del claims
        run(job)
    free()
    assert elsewhere(STATES.limit(2)) == [(1, "done"), (2, "new")]


def test_what_is_not_entered_is_given_back_when_the_next_one_comes_up(
    session_factory: Factory, other: LockingSession, elsewhere: Run
) -> None:
    claims = claim_each(session_factory, NEW)
    free = []
    for claim in claims:
        if claim.key == 2 and not claims.report.serialised:
            free.append(finds_held(Job, 1)(other))
        if claim.key % 2 == 0:
            with claim as job:
                run(job)
    assert free in ([], [False])
    assert (claims.report.processed, claims.report.given_back) == (5, 5)
    assert elsewhere(STATES)[:2] == [(1, "new"), (2, "done")]


def test_another_loop_goes_on_where_the_first_was_left(session_factory: Factory) -> None:
    claims = claim_each(session_factory, NEW, batch=4)
    for claim in claims:
        if claim.key == 2:
            break
    assert [claim.key for claim in claims] == [3, 4, 5, 6, 7, 8, 9, 10]


def test_a_whole_loop_leaves_nothing(session_factory: Factory, free: Free) -> None:
    assert len(list(claim_each(session_factory, NEW, batch=3))) == 10
    free()


def test_by_an_exception_in_a_block_of_a_batch(
    session_factory: Factory, free: Free, elsewhere: Run
) -> None:
    claims = claim_each(session_factory, NEW, batch=4)  # a for loop would end it too
    with next(claims) as job:
        run(job)
    with pytest.raises(LookupError), next(claims):
        raise LookupError
    free()
    assert elsewhere(STATES.limit(3)) == [(1, "done"), (2, "new"), (3, "new")]
    assert [claim.key for claim in claims] == list(range(3, 11))


# --------------------------------------------------------------------------------------------------
# An asynchronous loop releases its locks on an early exit or a cancelled task.


async def leave_by_break(claims: Any) -> None:
    async for _ in claims:
        break
    await asyncio.sleep(0)  # the event loop learns of the generator, and begins to close it
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

    async def work(make_session: AsyncFactory) -> None:
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


# --------------------------------------------------------------------------------------------------
# An abandoned loop is collected and releases its locks, whatever failed in it.

Gone = weakref.ref[Claims[Any]]


@pytest.fixture
def _collected() -> Iterator[None]:
    """Ignore garbage that other tests left."""
    gc.collect()
    gc.freeze()
    yield
    gc.collect()


class Broken(Exception):
    pass


def fail_in_the_first_block(claims: Claims[Any]) -> None:
    with next(claims):
        raise Broken


def leave_with_a_failure(factory: Factory) -> Gone:
    claims = claim_each(factory, NEW, limit=2, on_error="collect")
    for claim in claims:
        with claim:
            raise Broken
    assert len(claims.report.failed) == 2  # each with a traceback that contains this line
    return weakref.ref(claims)


def let_a_failure_out(factory: Factory) -> Gone:
    claims = claim_each(factory, NEW)
    with pytest.raises(Broken):
        fail_in_the_first_block(claims)
    return weakref.ref(claims)


def go_while_a_row_is_held(factory: Factory) -> Gone:
    claims = claim_each(factory, NEW, on_error="collect")
    with next(claims):
        raise Broken
    assert next(claims).key == 2
    return weakref.ref(claims)


def work_for_an_object(factory: Factory) -> Gone:
    class Worker:
        def __init__(self) -> None:
            self.claims = claim_each(self.new_session, NEW)

        def new_session(self) -> LockingSession:
            return factory()

    worker = Worker()
    assert next(worker.claims).key == 1
    return weakref.ref(worker.claims)


WAYS = [leave_with_a_failure, let_a_failure_out, go_while_a_row_is_held, work_for_an_object]


@pytest.mark.usefixtures("_collected")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_nothing_keeps_it(
    session_factory: Factory, way: Callable[[Factory], Gone], elsewhere: Run
) -> None:
    gone = way(session_factory)
    gc.collect()
    assert gone() is None
    elsewhere(sa.update(Job).values(weight=1))  # would wait for a held row


@pytest.mark.usefixtures("_collected")
def test_what_was_done_of_a_batch_is_committed(session_factory: Factory, elsewhere: Run) -> None:
    claims = claim_each(session_factory, NEW, batch=3)
    with next(claims) as job:
        run(job)
    report = claims.report
    del claims, job
    gc.collect()
    assert elsewhere(STATES.limit(2)) == [(1, "done"), (2, "new")]
    assert report.processed == 1
