"""An idempotency key: one debit and one answer, however often the payment is sent."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from tests.recipes.conftest import Recipe
from tests.recipes.load import at_once, breaks

KEYS, AMOUNT, TIMES = [f"key-{n}" for n in range(12)], 10, 4
BALANCE = 8 * AMOUNT  # not enough for all
READ = "found := session.query(Payment).filter_by(**of_client).first()"
UNLOCKED = (
    "session.get_or_create_entity(Payment, of_client, defaults=asked)",
    f"({READ}) or session.merge(Payment(**of_client, **asked)), found is None",
)


def load(program: Any) -> None:
    with program.Session.begin() as session:
        session.execute(sa.delete(program.Payment))
        session.merge(program.Account(id=1, balance=BALANCE))
    answers = at_once(
        [partial(program.pay, "ann", key, 1, AMOUNT) for key in KEYS for _ in range(TIMES)]
    )
    for first in range(0, len(answers), TIMES):
        assert all(answer == answers[first] for answer in answers[first : first + TIMES])
    assert sum(answer["paid"] for answer in answers[::TIMES]) == BALANCE // AMOUNT
    with program.Session() as session:
        assert session.get_one(program.Account, 1).balance == 0
    with pytest.raises(program.KeyReused):
        program.pay("ann", KEYS[0], 1, AMOUNT + 1)
    assert program.pay("bob", KEYS[0], 1, AMOUNT + 1)["paid"] is False  # a key of his own


def test_a_payment_is_done_once(recipe: Recipe) -> None:
    load(recipe("idempotency-key"))


@pytest.mark.databases("postgresql")
def test_without_the_lock_it_goes_wrong(recipe: Recipe) -> None:
    program = recipe("idempotency-key", UNLOCKED)
    assert breaks(lambda: load(program), DBAPIError)
