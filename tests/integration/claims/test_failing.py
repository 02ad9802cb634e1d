"""Blocks, locks and commits that fail."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import sessionmaker

from sa_doclock import DeadlockDetected, FailedClaim, LockingSession, claim_each
from tests.integration.claims.jobs import NEW, STATES, Job, run
from tests.integration.locking.steps import locks_rows

Factory = sessionmaker[LockingSession]
Run = Callable[..., list[Any]]
both = pytest.mark.parametrize("batch", [1, 4])


class Refused(Exception):
    """The error that a block raises."""


def done(elsewhere: Run) -> list[int]:
    return [key for key, state in elsewhere(STATES) if state == "done"]


@both
def test_an_exception_comes_out_and_takes_its_row_back(
    session_factory: Factory, elsewhere: Run, batch: int
) -> None:
    claims = claim_each(session_factory, NEW, batch=batch)
    stop = Refused()
    with pytest.raises(Refused) as caught:  # noqa: PT012
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
        with suppress(Refused), claim as job:
            run(job)
            if claim.key in (2, 3, 9):
                raise Refused
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
                raise Refused
    assert done(elsewhere) == [2, 3, 6, 7, 8, 9]
    assert [key for key, _ in claims.report.failed] == [1, 4, 5, 10]
    assert all(isinstance(error, Refused) for _, error in claims.report.failed)
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
