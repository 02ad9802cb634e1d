"""Four processes with two threads each, of which one is killed in mid-claim."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from lab.running.processes import Forked, forked
from sa_doclock import LockingSession, claim_each
from tests.integration.claims.jobs import NEW, Job, Log, Step
from tests.support.databases import Database

Run = Callable[..., list[Any]]
MANY = 500


@contextmanager
def started(database: Database, *names: str, ordered: bool = False) -> Iterator[list[Forked]]:
    """Start workers that are ready to begin, and end them in any case."""
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
@pytest.mark.not_databases("sqlite-journal")  # where a reader keeps writers from committing
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
        if documents.name != "sqlite":  # where nobody works beside the victim
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
