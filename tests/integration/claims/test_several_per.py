"""The recipe of docs/claiming.md for N claims at once of the rows with the same value."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockNotAvailable, claim_each, doclock_key
from tests.docs.pages import text_of
from tests.integration.claims.jobs import NEW, Job, run
from tests.support.actors import PATIENCE

pytestmark = pytest.mark.not_databases("sqlite")  # which has one lock for all

SLOTS, WORKERS = 2, 6


@pytest.fixture(scope="module")
def slot_of() -> Callable[..., bool]:
    """Return the function of the page."""
    (code,) = re.findall(
        r"^def slot_of.*?(?=\n\n\n)", text_of("docs/claiming.md"), re.DOTALL | re.MULTILINE
    )
    found: dict[str, Any] = {"LockNotAvailable": LockNotAvailable, "doclock_key": doclock_key}
    exec(code, found)
    function: Callable[..., bool] = found["slot_of"]
    return function


def test_a_slot_is_free_again_with_its_transaction(
    session_factory: sessionmaker[LockingSession], slot_of: Callable[..., bool]
) -> None:
    with session_factory() as one, session_factory() as two, session_factory() as three:
        for session, taken in ((one, True), (two, True), (three, False)):
            assert slot_of(session, "a", SLOTS) is taken
        assert slot_of(three, "b", SLOTS)
        one.rollback()
        assert slot_of(three, "a", SLOTS)


def test_no_more_are_at_work_and_all_is_done(
    session_factory: sessionmaker[LockingSession],
    slot_of: Callable[..., bool],
    elsewhere: Callable[..., list[Any]],
) -> None:
    mutex, at_work = threading.Lock(), Counter[int]()
    most, given_back = Counter[int](), threading.Event()
    both_work = threading.Barrier(SLOTS)

    def work() -> None:
        while elsewhere(sa.select(Job.id).where(Job.state == "new")):
            for claim in claim_each(session_factory, NEW):
                with claim as job:
                    if not slot_of(claim.session, job.weight, SLOTS):
                        claim.session.rollback()
                        given_back.set()
                        continue
                    weight = job.weight
                    with mutex:
                        at_work[weight] += 1
                        most[weight] = max(most[weight], at_work[weight])
                        first = job.weight == 99 and not given_back.is_set()
                    if first:
                        both_work.wait(PATIENCE)
                        assert given_back.wait(PATIENCE)  # by who finds no slot
                    run(job)
                    with mutex:
                        at_work[weight] -= 1

    with ThreadPoolExecutor(WORKERS) as threads:
        for one in [threads.submit(work) for _ in range(WORKERS)]:
            one.result(PATIENCE)
    assert max(most.values()) == SLOTS
    assert {*elsewhere(sa.select(Job.runs))} == {(1,)}
