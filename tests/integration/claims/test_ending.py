"""The transaction of a claim ends in a commit that fails, or in one of the block's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, claim_each
from tests.integration.claims.jobs import NEW, STATES, Job, run

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
