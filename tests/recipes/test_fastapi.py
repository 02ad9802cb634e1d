"""FastAPI with a check-out: who saves has seen what is stored, and nobody else could save meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa

from tests.recipes.conftest import Recipe
from tests.recipes.load import at_once, breaks

httpx = pytest.importorskip("httpx", reason="THE RECIPE DID NOT RUN: pip install fastapi httpx")
pytest.importorskip("fastapi", reason="THE RECIPE DID NOT RUN: pip install fastapi httpx")
TRIES = 40
UNLOCKED = (
    ("session.check_out(", "session.take_over("),
    (
        "with Session() as session, session.locked(Order, ident, checkout=epoch, lock_timeout=2) as order:",
        """with LockingSession(engine, guard="off") as session, session.begin():
        order = session.get_one(Order, ident)
        order.total = total
        return {"total": total}""",
    ),
)


async def edit(app: Any, user: str) -> int:
    """Open the form and save one more than it shows; return the status of the last request."""
    transport = httpx.ASGITransport(app)
    headers = {"Authorization": f"Bearer {user}"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://test", headers=headers
    ) as client:
        form = await client.post("/orders/1/checkout")
        if form.status_code != 200:
            return int(form.status_code)
        params = {"epoch": form.json()["epoch"], "total": form.json()["total"] + 1}
        return int((await client.put("/orders/1", params=params)).status_code)


def load(program: Any) -> None:
    with program.Session.begin() as session, session.unguarded():
        session.execute(sa.delete(program.table))
        session.execute(sa.delete(program.Order))
        session.add(program.Order(id=1))
    users = [lambda n=n: asyncio.run(edit(program.app, f"user {n}")) for n in range(TRIES)]
    answers = at_once(users)
    assert set(answers) <= {200, 423, 409, 503}
    assert 200 in answers
    with program.Session() as session:
        assert session.get_one(program.Order, 1).total == answers.count(200)


@pytest.mark.slow
def test_no_save_overwrites_another(recipe: Recipe) -> None:
    load(recipe("fastapi"))


def test_who_guesses_an_epoch_saves_nothing(recipe: Recipe) -> None:
    program = recipe("fastapi")
    with program.Session.begin() as session:
        session.add(program.Order(id=1))
    form = program.open_form(1, "ann")
    for guess in range(form["epoch"] + 2):
        with pytest.raises(program.CheckoutLost):
            program.save(1, "bob", guess, 7)
    assert program.save(1, "ann", form["epoch"], 7) == {"total": 7}


@pytest.mark.databases("postgresql")
def test_without_the_check_out_it_goes_wrong(recipe: Recipe) -> None:
    program = recipe("fastapi", *UNLOCKED)
    assert breaks(lambda: load(program))
