"""Stock: what was there is what is left and what is reserved, and never less than nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from tests.recipes.conftest import Recipe
from tests.recipes.load import at_once, breaks

ITEMS, STOCK = (1, 2, 3), 20
WITHOUT = {
    "the lock": ("LockOptions.ForUpdate", "LockOptions.None_"),
    "the condition": (", Item.stock >= quantity)", ", Item.stock >= 0)"),
}


def load(program: Any) -> None:
    with program.Session.begin() as session:
        for table in (program.Reservation, program.Item):
            session.execute(sa.delete(table))
        session.add_all(program.Item(id=ident, stock=STOCK) for ident in ITEMS)
    baskets = ({3: 1, 1: 2}, {1: 1, 2: 1, 3: 1}, {2: 3}, {2: 1, 1: 1})
    calls = [partial(program.reserve, basket) for basket in baskets for _ in range(8)]
    calls += [partial(program.take, ident, 1) for ident in ITEMS for _ in range(8)]
    at_once(calls, program.SoldOut)
    with program.Session() as session:
        for item in session.scalars(sa.select(program.Item)):
            reserved = session.scalar(
                sa.select(sa.func.sum(program.Reservation.quantity)).where(
                    program.Reservation.item_id == item.id
                )
            )
            assert item.stock >= 0
            assert item.stock + reserved == STOCK


def test_what_is_reserved_was_there(recipe: Recipe) -> None:
    program = recipe("stock")
    load(program)


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("what", WITHOUT)
def test_without_it_goes_wrong(recipe: Recipe, what: str) -> None:
    program = recipe(
        "stock", WITHOUT[what], ('CheckConstraint("stock >= 0")', 'CheckConstraint("1 = 1")')
    )
    assert breaks(lambda: load(program), DBAPIError)
