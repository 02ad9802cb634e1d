"""Failing blocks, locks and commits, the end of a claim's transaction, and processes that die."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import sessionmaker

from lab.running.processes import Forked, forked
from sa_doclock import DeadlockDetected, FailedClaim, LockingSession, claim_each
from tests.integration.claims.jobs import NEW, STATES, Job, Log, Step, run
from tests.integration.locking.steps import locks_rows
from tests.support.databases import Database

# --------------------------------------------------------------------------------------------------
# The transaction of a claim ends in a commit that fails, or in the block's own commit.

Factory = sessionmaker[LockingSession]
Run = Callable[..., list[Any]]
both = pytest.mark.parametrize("batch", [1, 4])


class Refused(Exception):
    """The error that a commit raises."""


def done(elsewhere: Run) -> list[int]:
    return [key for key, state in elsewhere(STATES) if state == "done"]


@both
@pytest.mark.parametrize("collects", [False, True])
def test_a_commit_that_fails(
    session_factory: Factory, elsewhere: Run, batch: int, collects: bool
) -> None:
    how = "collect" if collects else "raise"
    claims = claim_each(session_factory, NEW, on_error=how, batch=batch)  # type: ignore[call-overload]

    def refuse(session: LockingSession) -> None:
        if not session.in_nested_transaction():
            raise Refused

    def work() -> None:
        for claim in claims:
            with claim as job:
                run(job)
                if claim.key == 2:
                    event.listen(claim.session, "before_commit", refuse)

    if collects:
        work()
    else:
        with pytest.raises(Refused):
            work()
    lost = [2] if batch == 1 else [1, 2, 3, 4]
    assert [key for key, _ in claims.report.failed] == lost
    reached = range(1, 11) if collects else range(1, lost[-1] + 1)
    assert done(elsewhere) == [key for key in reached if key not in lost]


@both
def test_a_function_of_on_commit_that_fails_does_not_take_the_row_back(
    session_factory: Factory, elsewhere: Run, batch: int
) -> None:
    def fail() -> None:
        raise Refused

    claims = claim_each(session_factory, NEW, limit=4, batch=batch)
    with pytest.raises(Refused):  # noqa: PT012
        for claim in claims:
            with claim as job:
                run(job)
                claim.session.on_commit(fail)
    assert done(elsewhere) == ([1] if batch == 1 else [1, 2, 3, 4])
    assert claims.report.processed == len(claims.report.on_commit_errors) == batch
    assert claims.report.failed == []


@both
def test_a_block_that_commits_has_processed_its_row(
    session_factory: Factory, elsewhere: Run, batch: int
) -> None:
    claims = claim_each(session_factory, NEW, batch=batch)
    for claim in claims:
        with claim as job:
            run(job)
            claim.session.commit()
            with pytest.raises(sa.exc.InvalidRequestError):
                claim.session.scalar(sa.select(Job.id))
    assert done(elsewhere) == list(range(1, 11))
    assert claims.report.processed == 10


def test_a_block_that_rolls_back_gives_its_row_back(
    session_factory: Factory, elsewhere: Run
) -> None:
    claims = claim_each(session_factory, NEW)
    for claim in claims:
        with claim as job:
            run(job)
            if claim.key == 2:
                claim.session.rollback()
    assert done(elsewhere) == [1, *range(3, 11)]
    assert (claims.report.processed, claims.report.given_back) == (9, 1)


def test_what_is_changed_after_a_commit_is_refused(session_factory: Factory) -> None:
    claims = claim_each(session_factory, NEW, on_error="collect", limit=2)
    for claim in claims:
        with claim as job:
            run(job)
            claim.session.commit()
            if claim.key == 1:
                job.state = "lost"
    assert claims.report.processed == 2
    ((key, error),) = claims.report.on_commit_errors
    assert key == 1
    assert isinstance(error, sa.exc.InvalidRequestError)


# --------------------------------------------------------------------------------------------------
# Blocks, locks and commits that fail.


class FailingRefused(Exception):
    """The error that a block raises."""


@both
def test_an_exception_comes_out_and_takes_its_row_back(
    session_factory: Factory, elsewhere: Run, batch: int
) -> None:
    claims = claim_each(session_factory, NEW, batch=batch)
    stop = FailingRefused()
    with pytest.raises(FailingRefused) as caught:  # noqa: PT012
        for claim in claims:
            with claim as job:
                run(job)
                claim.session.flush()
                if claim.key == 3:
                    raise stop
    assert caught.value is stop
    assert done(elsewhere) == [1, 2]
    assert claims.report.failed == [FailedClaim(3, stop)]
    assert claims.report.processed == 2


@both
def test_a_loop_that_catches_it_can_go_on(
    session_factory: Factory, elsewhere: Run, batch: int
) -> None:
    claims = claim_each(session_factory, NEW, batch=batch)
    for claim in claims:
        with suppress(FailingRefused), claim as job:
            run(job)
            if claim.key in (2, 3, 9):
                raise FailingRefused
    assert done(elsewhere) == [1, 4, 5, 6, 7, 8, 10]
    assert [key for key, _ in claims.report.failed] == [2, 3, 9]
    assert claims.report.processed == 7


@both
def test_exceptions_are_collected(session_factory: Factory, elsewhere: Run, batch: int) -> None:
    claims = claim_each(session_factory, NEW, on_error="collect", batch=batch)
    for claim in claims:
        with claim as job:
            run(job)
            claim.session.flush()
            if claim.key in (1, 4, 5, 10):
                raise FailingRefused
    assert done(elsewhere) == [2, 3, 6, 7, 8, 9]
    assert [key for key, _ in claims.report.failed] == [1, 4, 5, 10]
    assert all(isinstance(error, FailingRefused) for _, error in claims.report.failed)
    assert claims.report.processed == 6


@both
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_is_not_collected(
    session_factory: Factory, elsewhere: Run, batch: int, kind: type[BaseException]
) -> None:
    claims = claim_each(session_factory, NEW, on_error="collect", batch=batch)
    with pytest.raises(kind):  # noqa: PT012
        for claim in claims:
            with claim as job:
                run(job)
                if claim.key == 2:
                    raise kind
    assert done(elsewhere) == [1]
    assert (claims.report.processed, len(claims.report.failed)) == (1, 1)


@both
@pytest.mark.parametrize("collects", [False, True])
def test_a_flush_that_fails_at_the_end_of_the_block(
    session_factory: Factory, elsewhere: Run, batch: int, collects: bool
) -> None:
    how = "collect" if collects else "raise"
    claims = claim_each(session_factory, NEW, on_error=how, batch=batch)  # type: ignore[call-overload]

    def work() -> None:
        for claim in claims:
            with claim as job:
                run(job)
                if claim.key == 2:
                    claim.session.add(Job(id=1, state="twice", weight=1))

    if collects:
        work()
    else:
        with pytest.raises(sa.exc.IntegrityError):
            work()
    assert done(elsewhere) == ([1, *range(3, 11)] if collects else [1])
    ((key, error),) = claims.report.failed
    assert key == 2
    assert isinstance(error, sa.exc.IntegrityError)


@both
@pytest.mark.parametrize("collects", [False, True])
def test_a_deadlock_while_a_row_is_locked(
    session_factory: Factory, engine: sa.Engine, elsewhere: Run, batch: int, collects: bool
) -> None:
    how = "collect" if collects else "raise"
    on_sqlite = engine.dialect.name == "sqlite"
    seen = []

    def break_second(_: Any, __: Any, statement: str, *___: Any) -> None:
        if statement == "BEGIN IMMEDIATE" if on_sqlite else locks_rows(statement):
            seen.append(statement)
            if len(seen) == 2:
                raise DeadlockDetected("as if")

    event.listen(engine, "before_cursor_execute", break_second)
    claims = claim_each(session_factory, NEW, on_error=how, batch=batch)  # type: ignore[call-overload]

    def work() -> None:
        for claim in claims:
            with claim as job:
                run(job)

    if collects:
        work()
    else:
        with pytest.raises(DeadlockDetected):
            work()
        assert done(elsewhere) == list(range(1, batch + 1))
        work()
    lost = list(range(batch + 1, 2 * batch + 1))
    assert [key for key, _ in claims.report.failed] == lost
    assert done(elsewhere) == [key for key in range(1, 11) if key not in lost]


@both
def test_a_flush_that_failed_and_was_swallowed_is_no_success(
    session_factory: Factory, elsewhere: Run, batch: int
) -> None:
    claims = claim_each(session_factory, NEW, batch=batch, limit=1, on_error="collect")
    for claim in claims:
        with claim as job:
            run(job)
            claim.session.add(Job(id=2))
            with suppress(sa.exc.IntegrityError):
                claim.session.flush()
    assert done(elsewhere) == []
    assert claims.report.processed == 0
    assert [key for key, _ in claims.report.failed] == [1]


# --------------------------------------------------------------------------------------------------
# Four processes with two threads each; one process is killed in mid-claim.

MANY = 500


@contextmanager
def started(database: Database, *names: str, ordered: bool = False) -> Iterator[list[Forked]]:
    """Start workers that are ready to begin, and always end them."""
    arguments = (database.url, json.dumps(database.connect_args))
    how = ["one_per"] if ordered else []
    with ExitStack() as stack:
        workers = [
            stack.enter_context(forked("tests.integration.claims.worker", *arguments, name, *how))
            for name in names
        ]
        for worker in workers:
            assert worker.next_line() == "ready"
        yield workers


@pytest.mark.slow
@pytest.mark.not_databases("sqlite-journal")  # there a reader keeps writers from committing
def test_each_row_is_processed_by_one_and_that_of_the_dead_can_be_claimed_again(
    documents: Database, session_factory: sessionmaker[LockingSession], elsewhere: Run
) -> None:
    rows = [{"id": n, "state": "new", "weight": 1, "runs": 0} for n in range(1, MANY + 1)]
    elsewhere(sa.delete(Step), sa.delete(Job), sa.insert(Job).values(rows))
    with started(documents, "victim", "ann", "ben", "cat") as (victim, *others):
        victim.tell()
        assert victim.next_line() == "inside 1"
        for other in others:
            other.tell()
        if documents.name != "sqlite":  # no other worker runs beside the victim
            assert others[0].next_line().startswith("working on ")
        victim.kill()
        for other in others:
            assert other.end() == 0
    logged = dict(elsewhere(sa.select(Log.job_id, sa.func.count()).group_by(Log.job_id)))
    runs = dict(elsewhere(sa.select(Job.id, Job.runs)))
    assert set(logged.values()) == {1}
    assert runs == {ident: logged.get(ident, 0) for ident in range(1, MANY + 1)}
    left = {ident for ident, count in runs.items() if count == 0}
    assert left <= {1}
    assert "victim" not in {worker for (worker,) in elsewhere(sa.select(Log.worker))}
    again = claim_each(session_factory, NEW, lock_timeout=20)
    assert {claim.key for claim in again} == left
