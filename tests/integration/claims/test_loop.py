"""A loop of claims without other workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import ClaimReport, LockingSession, LockMisuse, LockOptions, claim_each
from tests.integration.claims.jobs import NEW, STATES, Job, Log, Step, run
from tests.integration.locking.steps import finds_held, locks
from tests.support.actors import Actor
from tests.support.waits import wait_until_blocked

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


# --------------------------------------------------------------------------------------------------
# Other workers hold, process or delete rows meanwhile.

ForUpdate = LockOptions.ForUpdate
both = pytest.mark.parametrize("batch", [1, 4])


def work(factory: Factory, statement: Any = NEW, **how: Any) -> tuple[list[int], Any]:
    """Run all jobs; return their keys, and the report."""
    claims, keys = claim_each(factory, statement, **how), []
    for claim in claims:
        with claim as job:
            keys.append(job.id)
            run(job)
    return keys, claims.report


@both
@pytest.mark.not_databases("sqlite")
def test_what_another_holds_is_skipped(
    session_factory: Factory, other: LockingSession, batch: int
) -> None:
    other.get_one_entity(Job, 2, ForUpdate)
    keys, report = work(session_factory, batch=batch)
    assert keys == [1, 3, 4, 5, 6, 7, 8, 9, 10]
    assert (report.processed, report.skipped, report.no_longer_matching) == (9, 1, 0)


@both
@pytest.mark.not_databases("sqlite")
def test_what_another_claims_is_skipped(session_factory: Factory, batch: int) -> None:
    theirs = claim_each(session_factory, NEW, batch=batch)
    with next(theirs) as job:
        keys, report = work(session_factory)
        run(job)
    assert sorted(keys) == list(range(batch + 1, 11))
    assert report.skipped == batch


@both
def test_what_another_has_processed_meanwhile_is_gone(
    session_factory: Factory, elsewhere: Run, batch: int
) -> None:
    claims = claim_each(session_factory, NEW, batch=batch)
    keys = []
    for claim in claims:
        with claim as job:
            keys.append(job.id)
            run(job)
        if claim.key == batch:  # not locked yet
            elsewhere(sa.update(Job).where(Job.id == batch + 1).values(state="done"))
            elsewhere(sa.delete(Job).where(Job.id == batch + 4))
    assert keys == [n for n in range(1, 11) if n not in (batch + 1, batch + 4)]
    report = claims.report
    assert (report.processed, report.no_longer_matching, report.skipped) == (8, 2, 0)


@both
def test_conditions_on_other_rows_are_looked_at_again(
    session_factory: Factory, elsewhere: Run, batch: int
) -> None:
    unlogged = sa.select(Job).where(~sa.exists().where(Log.job_id == Job.id))
    claims = claim_each(session_factory, unlogged, batch=batch)
    keys = []
    for claim in claims:
        with claim as job:
            keys.append(job.id)
        if claim.key == batch:
            elsewhere(sa.insert(Log).values(job_id=batch + 2, worker="another"))
    assert batch + 2 not in keys
    assert claims.report.no_longer_matching == 1


def waits(factory: Factory, statement: Any, **how: Any) -> Callable[[LockingSession], Any]:
    """Make the step that works with a lock_timeout."""
    return lambda _: work(factory, statement, lock_timeout=20, **how)


@both
@pytest.mark.not_databases("mssql")  # there the plain read of the keys waits for alice
@pytest.mark.parametrize(
    "statement",
    [
        NEW,
        sa.select(Job).where(~sa.exists().where(Log.job_id == Job.id)),
        sa.select(Job).outerjoin(Log, Log.job_id == Job.id).where(Log.id.is_(None)),
    ],
    ids=["own row", "exists", "join"],
)
def test_what_was_processed_while_it_was_queued_for_is_gone(
    session_factory: Factory,
    alice: Actor[LockingSession],
    bob: Actor[LockingSession],
    statement: Any,
    batch: int,
) -> None:
    def process(session: LockingSession) -> None:
        session.get_one_entity(Job, 1, ForUpdate).state = "done"
        session.add(Log(job_id=1, worker="alice"))
        session.flush()

    alice.does(process)
    step = bob.starts(waits(session_factory, statement.where(Job.id <= 2), batch=batch))
    wait_until_blocked(waiter=bob, holder=alice, step=step)
    alice.does(lambda session: session.commit())
    keys, report = step.result()
    assert keys == [2]
    assert (report.processed, report.no_longer_matching, report.skipped) == (1, 1, 0)


@both
def test_what_was_left_alone_while_it_was_queued_for_is_processed(
    session_factory: Factory,
    alice: Actor[LockingSession],
    bob: Actor[LockingSession],
    batch: int,
) -> None:
    alice.does(locks(Job, 1))
    step = bob.starts(waits(session_factory, NEW.where(Job.id <= 2), batch=batch))
    wait_until_blocked(waiter=bob, holder=alice, step=step)
    alice.does(lambda session: session.rollback())
    assert step.result()[0] == [1, 2]


@both
@pytest.mark.parametrize("seconds", [0, 0.01])
@pytest.mark.not_databases("sqlite")
def test_what_is_held_past_the_time_is_skipped(
    session_factory: Factory, other: LockingSession, batch: int, seconds: float
) -> None:
    other.get_one_entity(Job, 2, ForUpdate)
    some = NEW.where(Job.id <= 4)
    keys, report = work(session_factory, some, lock_timeout=seconds, batch=batch)
    assert keys == [1, 3, 4]
    assert (report.processed, report.skipped, report.failed) == (3, 1, [])


@pytest.mark.not_databases("sqlite")
def test_rows_of_other_tables_are_not_locked(
    session_factory: Factory, other: LockingSession
) -> None:
    joined = sa.select(Job).join(Job.steps).where(Step.done == sa.false())
    claims = claim_each(session_factory, joined)
    with next(claims):
        for ident in (1, 2):
            assert other.get_entity(Step, ident, ForUpdate, lock_timeout=0)


@pytest.mark.not_databases("sqlite")
def test_two_batches_side_by_side_lock_nothing_of_each_other(
    session_factory: Factory, elsewhere: Run
) -> None:
    first = claim_each(session_factory, NEW, batch=3)
    second = claim_each(session_factory, NEW.where(Job.id > 3), batch=3)
    third = claim_each(session_factory, NEW, batch=9)
    with next(first), next(second):
        assert [claim.key for claim in third] == [7, 8, 9, 10]
        assert third.report.skipped == 6
        elsewhere(sa.update(Job).where(Job.id == 7).values(weight=1))
    assert elsewhere(STATES)[0] == (1, "new")
