"""Four processes with two threads each, of which one is killed in mid-claim."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, claim_each
from tests.integration.claims.jobs import NEW, Job, Log, Step
from tests.support.databases import Database

Run = Callable[..., list[Any]]
Worker = subprocess.Popen[str]
ROOT = Path(__file__).resolve().parents[3]
MANY = 500


@contextmanager
def started(database: Database, *names: str, ordered: bool = False) -> Iterator[list[Worker]]:
    """Start workers that are ready to begin, and end them in any case."""
    arguments = [database.url, json.dumps(database.connect_args)]
    command = [sys.executable, "-m", "tests.integration.claims.worker", *arguments]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    how = ["one_per"] if ordered else []
    workers = [subprocess.Popen([*command, name, *how], cwd=ROOT, **pipes) for name in names]
    try:
        for worker in workers:
            assert next_line(worker) == "ready"
        yield workers
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def next_line(worker: Worker) -> str:
    assert worker.stdout is not None
    return worker.stdout.readline().strip()


def tell(worker: Worker) -> None:
    assert worker.stdin is not None
    worker.stdin.write("go on\n")
    worker.stdin.flush()


@pytest.mark.slow
@pytest.mark.not_databases("sqlite-journal")  # where a reader keeps writers from committing
def test_each_row_is_processed_by_one_and_that_of_the_dead_can_be_claimed_again(
    documents: Database, session_factory: sessionmaker[LockingSession], elsewhere: Run
) -> None:
    rows = [{"id": n, "state": "new", "weight": 1, "runs": 0} for n in range(1, MANY + 1)]
    elsewhere(sa.delete(Step), sa.delete(Job), sa.insert(Job).values(rows))
    with started(documents, "victim", "ann", "ben", "cat") as (victim, *others):
        tell(victim)
        assert next_line(victim) == "inside 1"
        for other in others:
            tell(other)
        if documents.name != "sqlite":  # where nobody works beside the victim
            assert next_line(others[0]).startswith("working on ")
        victim.kill()
        for other in others:
            other.communicate(timeout=60)
            assert other.returncode == 0
    logged = dict(elsewhere(sa.select(Log.job_id, sa.func.count()).group_by(Log.job_id)))
    runs = dict(elsewhere(sa.select(Job.id, Job.runs)))
    assert set(logged.values()) == {1}
    assert runs == {ident: logged.get(ident, 0) for ident in range(1, MANY + 1)}
    left = {ident for ident, count in runs.items() if count == 0}
    assert left <= {1}
    assert "victim" not in {worker for (worker,) in elsewhere(sa.select(Log.worker))}
    again = claim_each(session_factory, NEW, lock_timeout=20)
    assert {claim.key for claim in again} == left
