"""A loop of claims that nobody else disturbs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import ClaimReport, LockingSession, LockMisuse, LockOptions, claim_each
from tests.integration.claims.jobs import NEW, STATES, Job, Log, run
from tests.integration.locking.steps import finds_held

pytestmark = pytest.mark.quick

Factory = sessionmaker[LockingSession]
Run = Callable[..., list[Any]]


def test_each_row_comes_up_once_in_the_order_of_the_keys(
    session_factory: Factory, elsewhere: Run
) -> None:
    claims = claim_each(session_factory, NEW)
    for claim in claims:
        with claim as job:
            assert job.id == claim.key
            run(job)
    assert elsewhere(STATES) == [(n, "done") for n in range(1, 11)]
    assert claims.report.processed == 10
    assert list(claims) == []


def test_the_end_of_a_block_commits_before_the_next_row_comes_up(
    session_factory: Factory, elsewhere: Run
) -> None:
    claims = iter(claim_each(session_factory, NEW))
    with next(claims) as job:
        run(job)
    assert elsewhere(STATES.limit(2)) == [(1, "done"), (2, "new")]
    next(claims)


def test_the_report_can_be_read_meanwhile(session_factory: Factory) -> None:
    claims = claim_each(session_factory, NEW)
    seen = []
    for claim in claims:
        seen.append(claims.report.processed)
        with claim as job:
            run(job)
    assert seen == list(range(10))
    assert claims.report == ClaimReport(processed=10, passes=1, serialised=claims.report.serialised)


def test_the_row_is_held_in_the_claims_session_as_long_as_the_block_lasts(
    session_factory: Factory, other: LockingSession
) -> None:
    for claim in claim_each(session_factory, NEW, limit=1):
        with claim as job:
            assert claim.session.held_locks == {(Job, (1,)): LockOptions.ForUpdate}
            assert job in claim.session
            assert finds_held(Job, 1)(other)
        assert not finds_held(Job, 1)(other)


def test_the_row_is_locked_when_its_turn_comes_and_not_before(
    session_factory: Factory, other: LockingSession
) -> None:
    with claim_each(session_factory, NEW) as claims:
        assert not finds_held(Job, 1)(other)
        next(claims)
        assert finds_held(Job, 1)(other)
        if not claims.report.serialised:
            assert not finds_held(Job, 2)(other)


def test_the_row_is_as_it_is_when_its_turn_comes(session_factory: Factory, elsewhere: Run) -> None:
    seen = []
    for claim in claim_each(session_factory, NEW, limit=2):
        with claim as job:
            seen.append(job.weight)
        elsewhere(sa.update(Job).where(Job.id == 2).values(weight=5))
    assert seen == [99, 5]


@pytest.mark.parametrize("batch", [1, 4])
def test_a_limit_counts_the_claims_that_come_up(
    session_factory: Factory, elsewhere: Run, batch: int
) -> None:
    elsewhere(sa.update(Job).where(Job.id == 1).values(state="done"))
    claims = claim_each(session_factory, NEW, limit=3, batch=batch)
    keys = []
    for claim in claims:
        with claim as job:
            keys.append(claim.key)
            run(job)
    assert keys == [2, 3, 4]
    assert claims.report.processed == 3


@pytest.mark.parametrize("in_statement", [False, True])
def test_the_rows_come_up_in_the_order_that_is_asked_for(
    session_factory: Factory, in_statement: bool
) -> None:
    order = (Job.weight.desc(), Job.id.desc())
    statement, asked = (NEW.order_by(*order), None) if in_statement else (NEW, order)
    keys = [claim.key for claim in claim_each(session_factory, statement, order_by=asked)]
    assert keys == [8, 4, 9, 5, 1, 10, 6, 2, 7, 3]


def test_save_changes_only_flushes(session_factory: Factory, elsewhere: Run) -> None:
    with claim_each(session_factory, NEW, limit=1) as claims:
        for claim in claims:
            with claim as job:
                job.weight = 5
                claim.session.save_changes()
                assert claim.session.in_transaction()
                assert claim.session.held_locks
    assert elsewhere(sa.select(Job.weight).where(Job.id == 1)) == [(5,)]


def test_on_commit_runs_when_the_row_is_free_again(
    session_factory: Factory, other: LockingSession
) -> None:
    held: list[bool] = []
    for claim in claim_each(session_factory, NEW, limit=1):
        with claim as job:
            run(job)
            claim.session.on_commit(lambda: held.append(finds_held(Job, 1)(other)))
    assert held == [False]


def test_more_can_be_written_and_locked_in_the_block(
    session_factory: Factory, elsewhere: Run
) -> None:
    for claim in claim_each(session_factory, NEW, limit=1):
        with claim as job:
            claim.session.add(Log(job_id=job.id, worker="me"))
            claim.session.get_one_entity(Job, 9, LockOptions.ForUpdate).weight = 1
    assert elsewhere(sa.select(Log.job_id)) == [(1,)]
    assert elsewhere(sa.select(Job.weight).where(Job.id == 9)) == [(1,)]


def test_a_claim_is_entered_once(session_factory: Factory) -> None:
    for claim in claim_each(session_factory, NEW, limit=1):
        with claim, pytest.raises(LockMisuse, match="has ended"), claim:
            pytest.fail("entered in itself")
        with pytest.raises(LockMisuse, match="has ended"), claim:
            pytest.fail("entered once more")


def test_a_claim_is_over_when_the_next_comes_up(session_factory: Factory) -> None:
    claims = claim_each(session_factory, NEW)
    first, _ = next(claims), next(claims)
    with pytest.raises(LockMisuse, match="claim of 1 has ended"), first:
        pytest.fail("entered too late")


def test_the_next_claim_is_not_to_be_had_inside_of_a_block(
    session_factory: Factory, elsewhere: Run
) -> None:
    claims = claim_each(session_factory, NEW)
    with next(claims) as job:
        run(job)
        with pytest.raises(LockMisuse, match="leave the block of this claim"):
            next(claims)
    assert elsewhere(STATES.limit(1)) == [(1, "done")]
