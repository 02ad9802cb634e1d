"""Jobs that fail: each is done once, or given up after its attempts, also if they kill the worker."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.recipes.conftest import Recipe, text_of_program
from tests.recipes.load import at_once, breaks, run_until_one_ends
from tests.support.databases import Database

AT_ONCE = ("PAUSE = timedelta(seconds=10)", "PAUSE = timedelta(0)")
UNLOCKED = (
    ("from collections.abc import Callable", "from contextlib import nullcontext"),
    ("Callable[[LockingSession, Job], None]", "object"),
    (
        "with Session() as session, session.locked(Job, ident) as job:",
        "with Session.begin() as session, nullcontext(session.get(Job, ident)) as job:",
    ),
)
WORK = """

def work(session: LockingSession, job: Job) -> None:
    session.add(Job(address=f"effect {job.id}", state="effect"))
    session.flush()
    if job.address == "fails" or (job.address == "fails twice" and job.attempts < 3):
        raise ValueError("for its own reason")
    if job.address == "kills":
        os.kill(os.getpid(), signal.SIGKILL)


def run_all() -> None:
    ready = select(Job.id).where(Job.state == "ready")
    while True:
        with Session() as session:
            if session.execute(ready).first() is None:
                return
        run_due(work)
"""
KILLED = "\n\nimport os\nimport signal\n" + WORK + "\n\nrun_all()\n"


def fill(program: Any, *kinds: str, times: int = 1) -> None:
    with program.Session.begin() as session:
        session.execute(sa.delete(program.Job))
        session.add_all(program.Job(address=kind) for kind in kinds * times)


def check(program: Any) -> None:
    with program.Session() as session:
        every = session.scalars(sa.select(program.Job)).all()
    effects = Counter(int(one.address.split()[1]) for one in every if one.state == "effect")
    jobs = [one for one in every if one.state != "effect"]
    for job in jobs:
        if job.address in ("fails", "kills"):
            found = (job.state, job.attempts, effects[job.id])
            assert found == ("given up", program.MOST, 0)
        else:
            assert (job.state, effects[job.id]) == ("done", 1)
            assert job.attempts >= (3 if job.address == "fails twice" else 1)
        if job.address == "kills":
            assert job.error == "each attempt ended its process"


def load(program: Any) -> None:
    fill(program, "good", "fails", "fails twice", times=4)
    exec(WORK, vars(program))
    at_once([program.run_all] * 6)
    check(program)


def test_each_job_is_done_once_or_given_up(recipe: Recipe) -> None:
    load(recipe("failing-jobs", AT_ONCE))


@pytest.mark.slow
@pytest.mark.not_databases("sqlite-journal")
def test_a_poison_job_has_its_attempts(recipe: Recipe, database: Database, tmp_path: Path) -> None:
    program = recipe("failing-jobs", AT_ONCE)
    fill(program, "good", "kills", "fails twice", "good")
    text = text_of_program("failing-jobs").replace(*AT_ONCE)
    died = run_until_one_ends(text + KILLED, database.url, tmp_path)
    check(program)
    assert 0 < died <= program.MOST


@pytest.mark.databases("postgresql")
def test_without_the_lock_it_goes_wrong(recipe: Recipe) -> None:
    program = recipe("failing-jobs", AT_ONCE, *UNLOCKED)
    assert breaks(lambda: load(program))
