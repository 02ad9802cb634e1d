"""claim_each(one_per=): of the rows with one weight, one is claimed at a time, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockOptions, async_claim_each, claim_each
from tests.integration.asyncio.drivers import in_a_loop
from tests.integration.claims.jobs import NEW, Job, Log, Step, run
from tests.integration.claims.loops import factory
from tests.integration.claims.test_processes import started
from tests.integration.claims.worker import has_one_before
from tests.support.databases import Database

Run = Callable[..., list[Any]]
Factory = sessionmaker[LockingSession]
GROUPS, EACH = 50, 6


def worked(factory: Factory, limit: int | None = None, **options: Any) -> list[int]:
    done = []
    for claim in claim_each(factory, NEW, one_per=Job.weight, limit=limit, **options):
        with claim as job:
            run(job)
        done.append(claim.key)
    return done


@pytest.mark.not_databases("sqlite")
def test_a_value_that_is_claimed_is_left_out_and_the_others_come_up(
    session_factory: Factory, elsewhere: Run
) -> None:
    first = claim_each(session_factory, NEW, one_per=Job.weight)
    for claim in first:
        with claim as job:  # of weight 99: 1, 5 and 9
            assert job.id == 1
            elsewhere(sa.insert(Job).values(id=0, state="new", weight=99, runs=0))  # and this
            assert worked(session_factory) == [2, 3, 4, 6, 7, 8, 10]
            run(job)
        break
    assert worked(session_factory) == [0, 5, 9]


def test_rows_come_up_in_the_order_of_their_value(session_factory: Factory, elsewhere: Run) -> None:
    claims = claim_each(session_factory, NEW, one_per=[Job.weight], order_by=Job.runs)
    with next(claims) as job:
        run(job)
        assert job.id == 1
    # A row that comes meanwhile, and stands before those that were read.
    elsewhere(sa.insert(Job).values(id=0, state="new", weight=98, runs=-1))
    keys = []
    for claim in claims:
        with claim as job:
            run(job)
            keys.append(job.id)
    assert sorted(keys) == [0, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert [key for key in keys if key in (0, 2, 6, 10)] == [0, 2, 6, 10]


def test_a_row_that_failed_has_had_its_turn(session_factory: Factory) -> None:
    claims = claim_each(session_factory, NEW, one_per=Job.weight, on_error="collect")
    keys = []
    for claim in claims:
        with claim as job:
            keys.append(job.id)
            run(job)
            assert job.id not in (1, 2)
    assert sorted(keys) == list(range(1, 11))
    assert sorted(failed.key for failed in claims.report.failed) == [1, 2]
    assert claims.report.processed == 8
    assert worked(session_factory) == [1, 2]


@pytest.mark.not_databases("sqlite")
def test_the_next_does_not_overtake_a_first_row_that_another_transaction_holds(
    session: LockingSession, session_factory: Factory
) -> None:
    session.get_one_entity(Job, 1, LockOptions.ForUpdate)
    claims = claim_each(session_factory, NEW, one_per=Job.weight)
    keys = []
    for claim in claims:
        with claim as job:
            run(job)
            keys.append(job.id)
    assert keys == [2, 3, 4, 6, 7, 8, 10]
    assert claims.report.skipped == 3
    session.rollback()
    assert worked(session_factory, lock_timeout=5) == [1, 5, 9]


@in_a_loop
async def test_it_is_awaited(documents: Database) -> None:
    async with factory(documents) as make:
        keys = []
        async for claim in async_claim_each(make, NEW, one_per=Job.weight):
            async with claim as job:
                run(job)
                keys.append(job.id)
    assert sorted(keys) == list(range(1, 11))


@pytest.mark.databases("sqlite")
def test_what_it_refuses(session_factory: Factory) -> None:
    with pytest.raises(ValueError, match="leave out batch"):
        claim_each(session_factory, NEW, one_per=Job.weight, batch=2)
    with pytest.raises(TypeError, match="one_per must be a column"):
        claim_each(session_factory, NEW, one_per="weight")


@pytest.mark.slow
@pytest.mark.not_databases("sqlite-journal")
def test_four_processes_and_one_that_dies(
    documents: Database, session_factory: Factory, elsewhere: Run
) -> None:
    ids = range(1, GROUPS * EACH + 1)
    rows = [{"id": n, "state": "new", "weight": n % GROUPS, "runs": 0} for n in ids]
    steps = [{"id": n, "job_id": 1, "done": False} for n in range(GROUPS)]
    elsewhere(sa.delete(Step), sa.delete(Job), sa.insert(Job).values(rows))
    elsewhere(sa.insert(Step).values(steps))
    with started(documents, "victim", "ann", "ben", "cat", ordered=True) as (victim, *others):
        victim.tell()
        assert victim.next_line() == "inside 1"
        for other in others:
            other.tell()
        if documents.name != "sqlite":  # where nobody works beside the victim
            assert others[0].next_line().startswith("working on ")
        victim.kill()
        for other in others:
            assert other.end() == 0
    order = [ident for (ident,) in elsewhere(sa.select(Log.job_id).order_by(Log.id))]
    assert len(order) == len(set(order))

    def with_those_before(idents: Iterable[int]) -> list[int]:
        one_more = {n: [-n] for n in idents if has_one_before(n, documents.name)}
        return [one for n in idents for one in (n, *one_more.get(n, ()))]

    for group in range(GROUPS):
        of_group = [ident for ident in order if abs(ident) % GROUPS == group]
        assert of_group == with_those_before(sorted(n for n in of_group if n > 0))
    left = worked(session_factory, lock_timeout=20)
    assert {*order, *left, *with_those_before(left)} == {*with_those_before(ids)}


def test_a_row_that_moves_to_another_value_comes_up_once(session_factory: Factory) -> None:
    keys = []
    for claim in claim_each(session_factory, NEW, one_per=Job.weight):
        with claim as job:
            keys.append(job.id)
            if job.id == 1:
                job.weight = 98  # and it still matches
            else:
                run(job)
    assert sorted(keys) == list(range(1, 11))
