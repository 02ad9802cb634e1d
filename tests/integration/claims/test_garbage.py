"""A loop that nobody has any more is garbage, whatever has failed in it, and holds nothing."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import Claims, LockingSession, claim_each
from tests.integration.claims.jobs import NEW, STATES, Job, run

Factory = sessionmaker[LockingSession]
Gone = weakref.ref[Claims[Any]]
Run = Callable[..., list[Any]]


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Look at nothing that other tests have left."""
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
    assert len(claims.report.failed) == 2  # each with a traceback, which leads to this very line
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


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_nothing_keeps_it(
    session_factory: Factory, way: Callable[[Factory], Gone], elsewhere: Run
) -> None:
    gone = way(session_factory)
    gc.collect()
    assert gone() is None
    elsewhere(sa.update(Job).values(weight=1))  # which would wait for a row that is held


def test_what_was_done_of_a_batch_is_committed(session_factory: Factory, elsewhere: Run) -> None:
    claims = claim_each(session_factory, NEW, batch=3)
    with next(claims) as job:
        run(job)
    report = claims.report
    del claims, job
    gc.collect()
    assert elsewhere(STATES.limit(2)) == [(1, "done"), (2, "new")]
    assert report.processed == 1
