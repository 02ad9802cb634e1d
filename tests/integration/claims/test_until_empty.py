"""Pass after pass, until there is nothing to do; never for ever, never without a rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockOptions, claim_each
from tests.integration.claims.jobs import NEW, STATES, Job, run

Factory = sessionmaker[LockingSession]
Run = Callable[..., list[Any]]
both = pytest.mark.parametrize("batch", [1, 4])


class Naps(list[float]):
    """A sleep() that only records the seconds, and then calls a function."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.then = then

    def __call__(self, seconds: float) -> None:
        self.append(seconds)
        self.then()


@both
def test_what_was_added_meanwhile_is_found(
    session_factory: Factory, elsewhere: Run, batch: int
) -> None:
    naps = Naps()
    keys = []
    claims = claim_each(session_factory, NEW, until_empty=True, batch=batch, sleep=naps)
    for claim in claims:
        with claim as job:
            run(job)
            keys.append(claim.key)
        if claim.key == 10:
            elsewhere(sa.insert(Job).values(id=0, state="new", weight=1))
    assert keys == [*range(1, 11), 0]
    assert claims.report.passes == 3
    assert naps == []


@both
@pytest.mark.parametrize("order_by", [None, Job.weight])
def test_a_row_that_still_matches_is_not_processed_twice(
    session_factory: Factory, elsewhere: Run, batch: int, order_by: Any
) -> None:
    naps = Naps()
    how: dict[str, Any] = {"until_empty": True, "batch": batch, "sleep": naps}
    claims = claim_each(session_factory, NEW, order_by=order_by, **how)
    for claim in claims:
        with claim as job:
            job.runs += 1
    assert elsewhere(sa.select(Job.runs).distinct()) == [(1,)]
    assert claims.report.processed == 10
    assert (claims.report.passes, naps) == (2, [])


@both
def test_a_row_that_fails_is_not_tried_again(session_factory: Factory, batch: int) -> None:
    naps, tried = Naps(), []
    how: dict[str, Any] = {"until_empty": True, "on_error": "collect", "batch": batch}
    claims = claim_each(session_factory, NEW, sleep=naps, **how)
    for claim in claims:
        with claim as job:
            tried.append(claim.key)
            run(job)
            if claim.key % 2:
                raise LookupError
    assert sorted(tried) == list(range(1, 11))
    assert [key for key, _ in claims.report.failed] == [1, 3, 5, 7, 9]
    assert naps == []


def test_a_row_that_is_not_entered_does_not_come_up_again(session_factory: Factory) -> None:
    claims = claim_each(session_factory, NEW, until_empty=True)
    assert [claim.key for claim in claims] == list(range(1, 11))
    assert claims.report.given_back == 10


@both
@pytest.mark.not_databases("sqlite")
def test_what_others_hold_all_the_time_is_given_up_after_some_rests(
    session_factory: Factory, other: LockingSession, batch: int
) -> None:
    other.get_one_entity(Job, 2, LockOptions.ForUpdate)
    naps = Naps()
    how: dict[str, Any] = {"until_empty": True, "attempts": 4, "batch": batch}
    claims = claim_each(session_factory, NEW, sleep=naps, **how)
    for claim in claims:
        with claim as job:
            run(job)
    report = claims.report
    assert (report.processed, report.skipped, report.no_longer_matching) == (9, 1, 0)
    assert claims.report.passes == 1 + 4
    assert len(naps) == 3
    assert all(0 <= nap <= 0.1 * 2**n for n, nap in enumerate(naps))


@both
@pytest.mark.not_databases("sqlite")
def test_what_others_let_go_of_meanwhile_is_processed(
    session_factory: Factory, other: LockingSession, elsewhere: Run, batch: int
) -> None:
    other.get_one_entity(Job, 2, LockOptions.ForUpdate)
    naps = Naps(other.rollback)
    claims = claim_each(session_factory, NEW, until_empty=True, sleep=naps, batch=batch)
    for claim in claims:
        with claim as job:
            run(job)
    assert len(naps) == 1
    assert (claims.report.processed, claims.report.skipped) == (10, 0)
    assert {state for _, state in elsewhere(STATES)} == {"done"}


@pytest.mark.not_databases("sqlite")
def test_what_others_held_and_have_processed_is_gone_and_not_skipped(
    session_factory: Factory, other: LockingSession
) -> None:
    run(other.get_one_entity(Job, 2, LockOptions.ForUpdate))
    claims = claim_each(session_factory, NEW, until_empty=True, sleep=Naps(other.commit))
    for claim in claims:
        with claim as job:
            run(job)
    report = claims.report
    assert (report.processed, report.skipped, report.no_longer_matching) == (9, 0, 1)


def test_a_limit_ends_it(session_factory: Factory) -> None:
    claims = claim_each(session_factory, NEW, until_empty=True, limit=3)
    assert [claim.key for claim in claims] == [1, 2, 3]


def test_nothing_to_do_is_one_read(session_factory: Factory) -> None:
    naps = Naps()
    claims = claim_each(session_factory, NEW.where(Job.weight < 0), until_empty=True, sleep=naps)
    assert list(claims) == []
    assert (claims.report.passes, naps) == (1, [])
