"""At most N at a time for each key, and a worker that dies gives its place back."""

from __future__ import annotations

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

PLACES = {"ann": 2, "bob": 1}
UNLOCKED = ("session.lock_key(doclock_key(", "doclock_key(")
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
    while not free:  # until the server has noticed
        with suppress(program.Busy), program.place_for("bob"):
            free = True


@pytest.mark.databases("postgresql")
def test_without_the_lock_it_goes_wrong(recipe: Recipe) -> None:
    program = recipe("limit", UNLOCKED, UNTIMED)
    assert breaks(lambda: load(program))
