"""Rows that others hold, have processed or deleted meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockOptions, claim_each
from tests.integration.claims.jobs import NEW, STATES, Job, Log, Step, run
from tests.integration.locking.steps import locks
from tests.support.actors import Actor
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.quick

Factory = sessionmaker[LockingSession]
Run = Callable[..., list[Any]]
ForUpdate = LockOptions.ForUpdate
both = pytest.mark.parametrize("batch", [1, 4])


def work(factory: Factory, statement: Any = NEW, **how: Any) -> tuple[list[int], Any]:
    """Run all jobs that come up; return their keys, and the report."""
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
@pytest.mark.not_databases("mssql")  # whose plain read of the keys waits for alice already
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
