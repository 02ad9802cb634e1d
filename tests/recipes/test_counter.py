"""A flash sale: as many tickets as seats, each with a number of its own."""

from __future__ import annotations

import json
import random
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from lab.running.processes import forked
from tests.recipes.conftest import OPTIONS, Recipe, text_of_program
from tests.recipes.load import at_once, breaks, without
from tests.support.databases import Database

SEATS, CALLERS, MANY = 50, 64, 2000
UNLOCKED = """\
    with Session() as session:
        number = buy(session, session.get_one(Concert, ident))
        session.commit()
        return number"""


def load(program: Any) -> None:
    with program.Session.begin() as session:
        session.merge(program.Concert(id=1, free=SEATS, sold=0))
    answers = at_once([partial(program.buy_ticket, 1)] * CALLERS, program.SoldOut)
    assert sorted(without(program.SoldOut, of=answers)) == list(range(1, SEATS + 1))
    with program.Session() as session:
        found = session.execute(sa.select(program.Concert.free, program.Concert.sold)).one()
        assert tuple(found) == (0, SEATS)


def test_each_ticket_has_a_number_of_its_own(recipe: Recipe) -> None:
    load(recipe("counter"))


def load_and_kill(
    program: Any, database: Database, text: str, chance: random.Random, processes: int = 2
) -> None:
    """Sell by several processes that are killed; then sell the rest."""
    with program.Session.begin() as session:
        session.merge(program.Concert(id=1, free=MANY, sold=0))
    options = {**OPTIONS.get(database.name, {})}
    options["connect_args"] = {**database.connect_args, **options.get("connect_args", {})}
    sold: list[int] = []
    with ExitStack() as stack:
        arguments = text, database.url, json.dumps(options)
        running = [
            stack.enter_context(forked("tests.recipes.selling_process", *arguments))
            for _ in range(processes)
        ]
        for process in running:
            sold += [int(process.next_line()) for _ in range(chance.randint(5, 40))]
            process.kill()
            sold += [int(line) for line in process.output.readlines() if line.endswith("\n")]
    with program.Session() as session:
        free, taken = session.execute(
            sa.select(program.Concert.free, program.Concert.sold).with_for_update()
        ).one()
    assert free + taken == MANY
    assert free >= 0
    assert len(sold) == len(set(sold))  # nobody has another's ticket
    assert max(sold) <= taken  # each ticket that somebody has is sold
    answers = at_once([partial(program.buy_ticket, 1)] * (free + 5), program.SoldOut)
    assert sorted(without(program.SoldOut, of=answers)) == list(range(taken + 1, MANY + 1))


def test_of_processes_that_are_killed_no_ticket_is_lost_or_sold_twice(
    recipe: Recipe, database: Database
) -> None:
    load_and_kill(recipe("counter"), database, text_of_program("counter"), random.Random(1))


@pytest.mark.databases("postgresql")
def test_of_processes_without_the_lock_it_goes_wrong(recipe: Recipe, database: Database) -> None:
    change = ("    return gate.run(Session, Concert, ident, buy, lock_timeout=10)", UNLOCKED)
    program, text = recipe("counter", change), text_of_program("counter").replace(*change)
    chance = random.Random(1)
    assert breaks(lambda: load_and_kill(program, database, text, chance))


@pytest.mark.databases("postgresql")
def test_without_the_gate_it_goes_wrong(recipe: Recipe) -> None:
    program = recipe(
        "counter", ("    return gate.run(Session, Concert, ident, buy, lock_timeout=10)", UNLOCKED)
    )
    assert breaks(lambda: load(program))
