"""A leader: what an old one writes never comes after its successor's."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import CheckoutLost
from tests.recipes.conftest import Recipe, text_of_program
from tests.recipes.load import at_once, breaks, start, without
from tests.support.databases import Database

UNLOCKED = (
    'with Session() as session, session.locked(Role, "scheduler", checkout=epoch):',
    'with LockingSession(engine) as session, session.locked(Role, "scheduler"):',
)
SHORT = ("LEASE = timedelta(seconds=15)", "LEASE = timedelta(seconds=1)")
KILLED = """

import os
import signal

with as_leader(lead("killed")) as session:
    session.add(Assignment(epoch=1, text="never saved"))
    session.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def first_leader(program: Any) -> None:
    with program.Session.begin() as session:
        session.add(program.Role(name="scheduler"))
    assert program.lead("first") == 1


def work(program: Any) -> int:
    """Lead, as if the lease of the one before had expired, and write twice."""
    with program.Session.begin() as session:
        mine = session.take_over(program.Role, "scheduler", program.new_process())
    for text in "first", "second":
        with program.as_leader(mine.epoch) as session:
            session.add(program.Assignment(epoch=mine.epoch, text=text))
    return int(mine.epoch)


def load(program: Any) -> None:
    answers = at_once([partial(work, program)] * 40, CheckoutLost)
    assert without(CheckoutLost, of=answers)
    with program.Session() as session:
        found = sa.select(program.Assignment.epoch).order_by(program.Assignment.id)
        epochs = session.scalars(found).all()
    assert epochs == sorted(epochs)


def test_who_leads_no_more_writes_no_more(recipe: Recipe) -> None:
    program = recipe("leader")
    first_leader(program)
    load(program)


def test_of_many_that_ask_one_leads(recipe: Recipe) -> None:
    program = recipe("leader")
    first_leader(program)
    with program.Session.begin() as session:
        session.check_in(session.checkout_of(program.Role, "scheduler"))
    answers = at_once([partial(program.lead, f"process {n}") for n in range(16)])
    assert sorted(answers, key=bool)[-2:] == [None, 2]


@pytest.mark.slow
@pytest.mark.not_databases("sqlite-journal")
def test_after_the_lease_of_one_that_was_killed_another_leads(
    recipe: Recipe, database: Database, tmp_path: Path
) -> None:
    program = recipe("leader", SHORT)
    with program.Session.begin() as session:
        session.add(program.Role(name="scheduler"))
    text = text_of_program("leader").replace(*SHORT)
    assert start(text + KILLED, database.url, tmp_path).wait(60) == -signal.SIGKILL
    epoch = None
    while epoch is None:
        epoch = program.lead("other")
    assert epoch == 2
    with program.as_leader(epoch) as session:
        assert session.scalars(sa.select(program.Assignment)).all() == []


@pytest.mark.databases("postgresql")
def test_without_the_epoch_it_goes_wrong(recipe: Recipe) -> None:
    program = recipe("leader", UNLOCKED)
    first_leader(program)
    assert breaks(lambda: load(program))
