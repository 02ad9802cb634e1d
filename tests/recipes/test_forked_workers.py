"""Forked workers: each job is done once, though some workers are killed."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.recipes.conftest import Recipe, text_of_program
from tests.recipes.load import start
from tests.support.databases import Database

pytestmark = [
    pytest.mark.slow,
    pytest.mark.not_databases("sqlite-journal"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork"),
]
JOBS = 12
CLAIMED = """\
    for claim in claim_each(Session, select(Job).where(Job.done == 0), until_empty=True):
        with claim as job:
            work(job)
            job.done += 1
"""
UNLOCKED = """\
    with Session.begin() as session:
        for job in session.scalars(select(Job).where(Job.done == 0)):
            work(job)
            job.done += 1
"""
RUN = """

import signal


def work(job: Job) -> None:
    with open("done", "a") as done:
        done.write(f"{job.id}\\n")
    if job.id % 4 == 0:
        try:
            os.mkdir(f"killed {job.id}")
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


with Session() as session:
    session.scalars(select(Job)).all()  # the pool of the parent has a connection
run(work, workers=3)
"""
DISPOSED = "            engine.dispose(close=False)  # the parent's connections are left alone\n"
HALF_DONE = """

import signal

from sqlalchemy.orm import object_session


def work(job: Job) -> None:
    try:
        os.mkdir(f"killed {job.id}")
    except FileExistsError:
        return
    job.done = 7  # half of the work
    object_session(job).flush()
    os.kill(os.getpid(), signal.SIGKILL)


work_through(work)  # of no jobs yet: the pool of the parent has a connection
with Session.begin() as session:
    session.add_all([Job(), Job()])
run(work, workers=1)
"""


def times_done(
    recipe: Recipe, database: Database, folder: Path, change: tuple[str, str] = ("", "")
) -> Counter[int]:
    """Return how often each job was begun and not killed."""
    program = recipe("forked-workers")
    with program.Session.begin() as session:
        session.add_all(program.Job() for _ in range(JOBS))
    text = text_of_program("forked-workers")
    assert change[0] in text
    parent = start(text.replace(*change) + RUN if change[0] else text + RUN, database.url, folder)
    assert parent.wait(120) == 0
    with program.Session() as session:
        assert set(session.scalars(sa.select(program.Job.done))) == {1}
    done = Counter(map(int, (folder / "done").read_text(encoding="utf-8").split()))
    done.subtract(int(one.name.split()[1]) for one in folder.glob("killed *"))
    return done


def test_each_job_is_done_once(recipe: Recipe, database: Database, tmp_path: Path) -> None:
    assert set(times_done(recipe, database, tmp_path).values()) == {1}


@pytest.mark.exhaustive
@pytest.mark.databases("postgresql")
def test_without_the_claim_it_goes_wrong(
    recipe: Recipe, database: Database, tmp_path: Path
) -> None:
    done = times_done(recipe, database, tmp_path, (CLAIMED, UNLOCKED))
    assert max(done.values()) > 1


def saved_by_one_after_another(
    recipe: Recipe, database: Database, folder: Path, text: str
) -> list[int]:
    """Return what is saved of two jobs, each killed once when half of it was sent."""
    program = recipe("forked-workers")
    assert start(text + HALF_DONE, database.url, folder).wait(60) == 0
    with program.Session() as session:
        return list(session.scalars(sa.select(program.Job.done)))


def test_nobody_saves_the_half_of_one_that_was_killed(
    recipe: Recipe, database: Database, tmp_path: Path
) -> None:
    text = text_of_program("forked-workers")
    assert saved_by_one_after_another(recipe, database, tmp_path, text) == [1, 1]


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_without_dispose_the_next_worker_saves_it(
    recipe: Recipe, database: Database, tmp_path: Path
) -> None:
    text = text_of_program("forked-workers")
    assert DISPOSED in text
    text = text.replace(DISPOSED, "")
    assert 7 in saved_by_one_after_another(recipe, database, tmp_path, text)
