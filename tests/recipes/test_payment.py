"""A payment: booked once, though the proxy dies in COMMIT."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import close_all_sessions

from sa_doclock import CommitUnknown
from tests.recipes.conftest import Recipe
from tests.recipes.load import at_once
from tests.reliability.faults.proxy import proxy_to
from tests.support.databases import Database

AMOUNT, TIMES = 10, 12


def fill(program: Any) -> None:
    with program.Session.begin() as session:
        session.execute(sa.delete(program.Booking))
        session.merge(program.Account(id=1, balance=1000))
    program.receipts.clear()


def booked(program: Any) -> tuple[int, int, int]:
    """Return how often it is booked: by the balance, the bookings and the receipts."""
    with program.Session() as session:
        balance = session.get_one(program.Account, 1).balance
        rows = session.scalar(sa.select(sa.func.count()).select_from(program.Booking))
    return (1000 - balance) // AMOUNT, rows, len(program.receipts)


def test_payments_at_once(recipe: Recipe) -> None:
    program = recipe("payment")
    fill(program)
    at_once([partial(program.book, 1, AMOUNT)] * TIMES)
    assert booked(program) == (TIMES, TIMES, TIMES)


def book_through_dying_proxy(database: Database, program: Any, *, done: bool) -> None:
    with proxy_to(database.url) as proxy:
        through = sa.create_engine(proxy.url, connect_args=database.connect_args)
        program.Session.configure(bind=through)
        try:
            cut = proxy.cut_next_commit(reaches_server=done)
            program.book(1, AMOUNT)
            assert cut.happened
        finally:
            close_all_sessions()
            program.Session.configure(bind=program.engine)
            through.dispose()


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_booked_once_though_the_proxy_died(recipe: Recipe, database: Database, done: bool) -> None:
    program = recipe("payment")
    fill(program)
    book_through_dying_proxy(database, program, done=done)
    assert booked(program) == (1, 1, 1)


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_without_the_option_nobody_knows(recipe: Recipe, database: Database, done: bool) -> None:
    program = recipe("payment", (", commit_outcome=True", ""))
    fill(program)
    with pytest.raises(CommitUnknown):
        book_through_dying_proxy(database, program, done=done)
    assert booked(program) == (done, done, 0)
