"""Cron on many hosts: the work of each tick is saved once, whatever fails or is killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from tests.recipes.conftest import Recipe, text_of_program
from tests.recipes.load import at_once, breaks, run_until_one_ends
from tests.support.databases import Database

TICKS = range(1, 7)
UNLOCKED = (
    'session.get_or_create_entity(Schedule, name, lock, defaults={"last": 0})',
    "session.get(Schedule, name) or session.merge(Schedule(name=name, last=0)), True",
)
KILLED = """

import os
import signal
from uuid import uuid4


def work(session: LockingSession, tick: int) -> None:
    session.add(Schedule(name=f"effect {tick} {uuid4()}", last=tick))
    session.flush()
    try:
        os.mkdir(f"tick {tick}")
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)  # the first host that has come so far


for tick in 1, 2:
    while not run_once("invoices", tick, lambda session: work(session, tick)):
        with Session() as session:
            schedule = session.get(Schedule, "invoices")
            if schedule is not None and schedule.last >= tick:
                break
"""


def check(program: Any, ticks: Iterable[int]) -> None:
    with program.Session() as session:
        every = session.scalars(sa.select(program.Schedule)).all()
    done = Counter(one.last for one in every if one.name.startswith("effect"))
    assert done == dict.fromkeys(ticks, 1)


def load(program: Any) -> None:
    failed: set[int] = set()
    with program.Session.begin() as session:
        session.execute(sa.delete(program.Schedule))

    def work(tick: int, host: int, session: Any) -> None:
        session.add(program.Schedule(name=f"effect {tick} {host}", last=tick))
        session.flush()
        if tick % 2 and tick not in failed:
            failed.add(tick)
            raise ValueError("for its own reason")

    for tick in TICKS:
        answers: list[Any] = []
        while True not in answers:
            calls = [partial(program.run_once, "x", tick, partial(work, tick, n)) for n in range(8)]
            answers += at_once(calls, ValueError)
        assert answers.count(True) == 1
    check(program, TICKS)


def test_each_tick_is_done_once(recipe: Recipe) -> None:
    load(recipe("cron"))


@pytest.mark.slow
@pytest.mark.not_databases("sqlite-journal")
def test_another_host_does_what_a_killed_one_began(
    recipe: Recipe, database: Database, tmp_path: Path
) -> None:
    program = recipe("cron")
    run_until_one_ends(text_of_program("cron") + KILLED, database.url, tmp_path)
    check(program, (1, 2))


@pytest.mark.databases("postgresql")
def test_without_the_lock_it_goes_wrong(recipe: Recipe) -> None:
    program = recipe("cron", UNLOCKED)
    assert breaks(lambda: load(program), DBAPIError)
