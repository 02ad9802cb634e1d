"""Several databases: two of them, and read replicas."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from tests.recipes.conftest import Recipe
from tests.recipes.load import at_once, breaks

# --------------------------------------------------------------------------------------------------
# Two databases: in the end each order has taken its quantity once, whoever has died in between.

ORDERS, STOCK = range(1, 31), 1000


class Crash(Exception):
    """The worker dies between the two commits."""


def load(program: Any) -> None:
    with program.WarehouseSession.begin() as session:
        session.execute(sa.delete(program.Booking))
        session.merge(program.Stock(item=1, quantity=STOCK))
    with program.ShopSession.begin() as session:
        session.execute(sa.delete(program.Order))
        session.add_all(program.Order(id=n, item=1, quantity=n) for n in ORDERS)
    book = program.book

    def book_and_die(*order: int) -> None:
        book(*order)
        if random.random() < 0.2:
            raise Crash

    program.book = book_and_die
    at_once([program.book_all] * 16, Crash)
    program.book = book
    program.book_all()
    with program.WarehouseSession() as session:
        assert session.get_one(program.Stock, 1).quantity == STOCK - sum(ORDERS)
    with program.ShopSession() as session:
        assert not session.scalars(sa.select(program.Order).where(~program.Order.booked)).all()


@pytest.mark.slow
@pytest.mark.not_databases(
    "sqlite", "sqlite-journal"
)  # their file would be one; the page's own sample has two
def test_each_order_is_booked_once(recipe: Recipe) -> None:
    load(recipe("two-databases"))


@pytest.mark.databases("postgresql")
def test_without_the_key_it_goes_wrong(recipe: Recipe) -> None:
    program = recipe("two-databases", ("if created:", "if True:"))
    assert breaks(lambda: load(program))


# --------------------------------------------------------------------------------------------------
# Read replicas: a report never has a total that is not that of its lines, and what one has written is in it.


def load_read_replicas(program: Any) -> None:
    with program.Session.begin() as session, session.unguarded():
        session.execute(sa.delete(program.Line))
        session.execute(sa.delete(program.Order))
        session.add(program.Order(id=1))

    def write_and_read() -> Any:
        return program.read(1, at_least=program.add_line(1, 7))

    answers = at_once([write_and_read, partial(program.read, 1), partial(program.read, 1)] * 20)
    for answer in answers:
        assert answer["total"] == sum(answer["lines"])
    assert len(program.read(1)["lines"]) == 20


@pytest.mark.slow
def test_a_report_is_of_one_moment(recipe: Recipe) -> None:
    load_read_replicas(recipe("read-replicas"))


@pytest.mark.databases("postgresql")
def test_without_the_snapshot_it_goes_wrong(recipe: Recipe) -> None:
    program = recipe("read-replicas", ("LockOptions.SnapshotRead", "LockOptions.None_"))
    assert breaks(lambda: load_read_replicas(program))
