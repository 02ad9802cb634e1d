"""A flash sale: as many tickets as seats, each with a number of its own."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from tests.recipes.conftest import Recipe
from tests.recipes.load import at_once, breaks, without

SEATS, CALLERS = 50, 64
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


@pytest.mark.databases("postgresql")
def test_without_the_gate_it_goes_wrong(recipe: Recipe) -> None:
    program = recipe(
        "counter", ("    return gate.run(Session, Concert, ident, buy, lock_timeout=10)", UNLOCKED)
    )
    assert breaks(lambda: load(program))
