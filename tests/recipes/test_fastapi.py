"""FastAPI with a check-out: a user who saves saw the stored data, and nobody else could save in between."""

from __future__ import annotations

import asyncio
import signal
import socket
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.recipes.conftest import Recipe, text_of_program
from tests.recipes.load import THREADS, at_once, breaks, start
from tests.support.databases import Database

httpx = pytest.importorskip("httpx", reason="THE RECIPE DID NOT RUN: pip install fastapi httpx")
pytest.importorskip("fastapi", reason="THE RECIPE DID NOT RUN: pip install fastapi httpx")
pytest.importorskip("uvicorn", reason="THE RECIPE DID NOT RUN: pip install uvicorn")
TRIES = 40
SAVES = 10
TRANSPORT_ERRORS = 10  # more than servers are killed
SERVED = """

import os
import signal
from itertools import count

import uvicorn
from sqlalchemy import event

flushes = count(1)


@event.listens_for(LockingSession, "after_flush")
def die(_session, _context):
    if next(flushes) == LAST:
        os.kill(os.getpid(), signal.SIGKILL)  # in the midst of a save


uvicorn.run(app, port=PORT, log_level="critical")
"""
UNLOCKED = (
    ("session.check_out(", "session.take_over("),
    (
        """with (
        Session() as session,
        session.locked(Order, ident, checkout=epoch, lock_timeout=2) as order,
    ):""",
        """with LockingSession(engine, guard="off") as session, session.begin():
        order = session.get_one(Order, ident)
        order.total = total
        return {"total": total}""",
    ),
)


async def edit(app: Any, user: str) -> int:
    """Open the form and save its value plus one; return the status of the last request."""
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


def client_of(url: str, user: str) -> Any:
    """Return a client once the server listens, after eight seconds at most."""
    headers = {"Authorization": f"Bearer {user}"}
    waits = httpx.HTTPTransport(retries=5)
    return httpx.Client(base_url=url, headers=headers, transport=waits, timeout=60)


def request(client: Any, method: str, path: str, **params: int) -> tuple[Any, bool]:
    """Return the answer, and whether it took more than one request."""
    again, errors = False, 0
    while True:
        try:
            answer = client.request(method, path, params=params)
            if answer.status_code != 503:
                return answer, again
        except httpx.TransportError:  # the server died, perhaps after its COMMIT
            errors += 1
            if errors == TRANSPORT_ERRORS:
                raise
        again = True


def check_out(url: str, ident: int, user: str) -> int:
    """Return the epoch of a check-out from the server's answer."""
    with client_of(url, user) as client:
        return int(request(client, "POST", f"/orders/{ident}/checkout")[0].json()["epoch"])


def save_some(url: str, ident: int, user: str) -> int:
    """Save the form's value plus one, ten times, while servers die; return the number of saves."""
    saved = 0
    with client_of(url, user) as client:
        while saved < SAVES:
            form, _ = request(client, "POST", f"/orders/{ident}/checkout")
            if form.status_code == 423:
                continue
            params = {"epoch": form.json()["epoch"], "total": form.json()["total"] + 1}
            answer, again = request(client, "PUT", f"/orders/{ident}", **params)
            # A repetition gets 409: the first request committed and returned the check-out
            assert answer.status_code == 200 or (again and answer.status_code == 409)
            saved += 1
    return saved


def load_and_kill(program: Any, database: Database, text: str, folder: Path) -> None:
    with program.Session.begin() as session, session.unguarded():
        session.execute(sa.delete(program.table))
        session.execute(sa.delete(program.Order))
        session.add_all(program.Order(id=ident) for ident in (1, 2, 3))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    text += SERVED.replace("PORT", str(port))
    url = f"http://127.0.0.1:{port}"
    with ThreadPoolExecutor(THREADS) as threads:
        kept = threads.submit(check_out, url, 3, "ann")
        users = [threads.submit(save_some, url, 1 + n % 2, f"user {n}") for n in range(THREADS)]
        for last in (5, 5, 5, 0):
            server = start(text.replace("LAST", str(last)), database.url, folder)
            try:
                if last:
                    assert server.wait(60) == -signal.SIGKILL
                else:
                    wait(users, 120)
            finally:
                server.kill()
                server.wait()
    times = [user.result() for user in users]
    with program.Session() as session:
        totals = [session.get_one(program.Order, ident).total for ident in (1, 2)]
    assert totals == [sum(times[::2]), sum(times[1::2])]
    with pytest.raises(program.CheckedOut):
        program.open_form(3, "bob")
    assert program.save(3, "ann", kept.result(), 7) == {"total": 7}


@pytest.mark.slow
@pytest.mark.not_databases("sqlite-journal")
def test_of_a_server_that_is_killed_no_save_is_lost_or_doubled(
    recipe: Recipe, database: Database, tmp_path: Path
) -> None:
    load_and_kill(recipe("fastapi"), database, text_of_program("fastapi"), tmp_path)


@pytest.mark.slow
@pytest.mark.databases("postgresql")
def test_killed_without_the_check_out_it_goes_wrong(
    recipe: Recipe, database: Database, tmp_path: Path
) -> None:
    text = text_of_program("fastapi")
    for change in UNLOCKED:
        text = text.replace(*change)
    program = recipe("fastapi", *UNLOCKED)
    assert breaks(lambda: load_and_kill(program, database, text, tmp_path))
