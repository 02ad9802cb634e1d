"""Moving money: none is made, none is lost, each balance is the sum of its entries, and nobody deadlocks."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import DeadlockDetected
from tests.recipes.conftest import Recipe
from tests.recipes.load import at_once, breaks

ACCOUNTS, MONEY = (1, 2, 3), 30
BY_ONE = "session.locked_documents(Account, [source, target]) as [giver, taker]"
WITHOUT = {
    "lock": "session.begin(), nullcontext([session.get_one(Account, source), session.get_one(Account, target)]) as [giver, taker]",
    "order": "session.locked_document(Account, source) as giver, session.locked_document(Account, target) as taker",
}


def load(program: Any, *expected: type[Exception]) -> None:
    with program.Session.begin() as session, session.unguarded():
        session.execute(sa.delete(program.Entry))
        session.execute(sa.delete(program.Account))
        session.add_all(
            program.Account(id=ident, balance=MONEY, entries=[program.Entry(amount=MONEY)])
            for ident in ACCOUNTS
        )
    ways = itertools.permutations(ACCOUNTS, 2)
    at_once(
        [partial(program.move, *way, 7) for way in ways for _ in range(10)],
        program.NotEnough,
        *expected,
    )
    with program.Session() as session:
        found = session.get_documents(program.Account, ACCOUNTS)
        assert sum(account.balance for account in found) == MONEY * len(ACCOUNTS)
        for account in found:
            assert account.balance == sum(entry.amount for entry in account.entries) >= 0


@pytest.mark.slow
def test_money_moves_without_a_deadlock(recipe: Recipe) -> None:
    load(recipe("moving-money"))


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize(
    ("what", "symptom"), [("lock", AssertionError), ("order", DeadlockDetected)]
)
def test_without_it_goes_wrong(recipe: Recipe, what: str, symptom: type[Exception]) -> None:
    program = recipe(
        "moving-money",
        (BY_ONE, WITHOUT[what]),
        ("from sa_doclock", "from contextlib import nullcontext\nfrom sa_doclock"),
        (
            "class_=LockingSession",
            f'class_=LockingSession, guard="{"off" if what == "lock" else "raise"}"',
        ),
    )
    expected = [DeadlockDetected] if symptom is AssertionError else []  # of two UPDATEs
    assert breaks(lambda: load(program, *expected), symptom)
