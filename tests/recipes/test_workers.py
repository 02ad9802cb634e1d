"""Workers: forked ones, and at most N at a time."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.recipes.conftest import Recipe, text_of_program
from tests.recipes.load import at_once, breaks, start
from tests.support.databases import Database

# --------------------------------------------------------------------------------------------------
# Forked workers: each job runs once, though some workers are killed.

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
    """Return how often each job began without being killed."""
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


@pytest.mark.slow
@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_each_job_is_done_once(recipe: Recipe, database: Database, tmp_path: Path) -> None:
    assert set(times_done(recipe, database, tmp_path).values()) == {1}


@pytest.mark.slow
@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
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
    """Return the saved results of two jobs, each killed once after sending half of its work."""
    program = recipe("forked-workers")
    assert start(text + HALF_DONE, database.url, folder).wait(60) == 0
    with program.Session() as session:
        return list(session.scalars(sa.select(program.Job.done)))


@pytest.mark.slow
@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("disposed", [True, False])
def test_nobody_saves_the_half_of_one_that_was_killed(
    recipe: Recipe, database: Database, tmp_path: Path, *, disposed: bool
) -> None:
    """A forgotten dispose() leaves the parent's connection in the pool, which is replaced."""
    text = text_of_program("forked-workers")
    assert DISPOSED in text
    text = text if disposed else text.replace(DISPOSED, "")
    assert saved_by_one_after_another(recipe, database, tmp_path, text) == [1, 1]


# --------------------------------------------------------------------------------------------------
# At most N workers at a time for each key; a worker that dies frees its slot.

PLACES = {"ann": 2, "bob": 1}
UNLOCKED_LIMIT = ("session.lock_key(doclock_key(", "doclock_key(")
UNTIMED = ("place), lock_timeout=0)", "place)")
KILLED = """

import os
import signal

with place_for("bob"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def fill(program: Any) -> None:
    with program.Session.begin() as session:
        session.execute(sa.delete(program.Tenant))
        session.add_all(program.Tenant(name=name, exports=n) for name, n in PLACES.items())


def load(program: Any) -> None:
    fill(program)
    mutex, here, most = threading.Lock(), Counter[str](), Counter[str]()

    def export(name: str) -> None:
        with program.place_for(name):
            with mutex:
                here[name] += 1
                most[name] = max(most[name], here[name])
            with program.Session() as session:
                session.get(program.Tenant, name)
            with mutex:
                here[name] -= 1

    answers = at_once([partial(export, name) for name in PLACES] * 20, program.Busy)
    assert None in answers
    assert all(most[name] <= places for name, places in PLACES.items())


def test_no_more_than_n(recipe: Recipe) -> None:
    load(recipe("limit"))


@pytest.mark.not_databases("sqlite", "sqlite-journal")
def test_n_of_each_key(recipe: Recipe) -> None:
    program = recipe("limit")
    fill(program)
    with (
        program.place_for("ann") as first,
        program.place_for("bob"),
        program.place_for("ann") as second,
    ):
        assert {first, second} == {0, 1}
        with pytest.raises(program.Busy), program.place_for("ann"):
            pass
    with program.place_for("ann"):
        pass


@pytest.mark.slow
@pytest.mark.not_databases("sqlite-journal")
def test_who_is_killed_gives_the_place_back(
    recipe: Recipe, database: Database, tmp_path: Path
) -> None:
    program = recipe("limit")
    fill(program)
    killed = start(text_of_program("limit") + KILLED, database.url, tmp_path)
    assert killed.wait(60) == -signal.SIGKILL
    free = False
    while not free:  # until the server notices
        with suppress(program.Busy), program.place_for("bob"):
            free = True


@pytest.mark.databases("postgresql")
def test_without_the_lock_it_goes_wrong(recipe: Recipe) -> None:
    program = recipe("limit", UNLOCKED_LIMIT, UNTIMED)
    assert breaks(lambda: load(program))
