"""The outbox: workers are killed before and after they send, and each order's message arrives."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.recipes.conftest import Recipe, text_of_program
from tests.recipes.load import at_once, run_until_one_ends
from tests.support.databases import Database

ORDERS = 12
SEND = "            send(message.id, message.text)\n"
EARLY = (
    "            ident, text = message.id, message.text\n"
    "            claim.session.on_commit(lambda ident=ident, text=text: send(ident, text))\n"
)
FATE = '''

import os
import signal


def send(ident: int, text: str) -> None:
    """Write the message down; some workers die before it, and some after it."""
    fate = (ident + os.getpid()) % 7
    if fate == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    with open("arrived", "a") as arrived:
        arrived.write(text + "\\n")
    if fate == 1:
        os.kill(os.getpid(), signal.SIGKILL)


send_all(send)
'''


def arrived(
    recipe: Recipe, database: Database, folder: Path, change: tuple[str, str] = ("", "")
) -> tuple[list[str], int]:
    """Place orders, let workers send and die; return what has arrived, and how many have died."""
    program = recipe("outbox")
    at_once([partial(program.place_order, f"customer {n}") for n in range(ORDERS)])
    text = text_of_program("outbox")
    assert change[0] in text
    text = text.replace(*change) if change[0] else text
    (folder / "arrived").touch()
    died = run_until_one_ends(text + FATE, database.url, folder)
    with program.Session() as session:
        wanted = session.scalars(sa.select(program.Message.text)).all()
        left = session.scalars(sa.select(program.Message.text).where(~program.Message.sent)).all()
    found = (folder / "arrived").read_text(encoding="utf-8").splitlines()
    assert set(found) <= set(wanted)
    return [text for text in wanted if text not in found and text not in left], len(found) - len(
        set(found)
    ) - died


@pytest.mark.slow
@pytest.mark.not_databases("sqlite-journal")
def test_each_message_arrives(recipe: Recipe, database: Database, tmp_path: Path) -> None:
    lost, twice_without_a_death = arrived(recipe, database, tmp_path)
    assert lost == []
    assert twice_without_a_death <= 0


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.databases("postgresql")
def test_sent_after_the_commit_it_can_be_lost(
    recipe: Recipe, database: Database, tmp_path: Path
) -> None:
    lost, _ = arrived(recipe, database, tmp_path, (SEND, EARLY))
    assert lost
