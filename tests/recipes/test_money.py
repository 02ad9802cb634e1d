"""Money: transfers, payments, idempotency keys, gapless numbers."""

from __future__ import annotations

import itertools
from collections import defaultdict
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import close_all_sessions

from sa_doclock import CommitUnknown, DeadlockDetected
from tests.recipes.conftest import Recipe
from tests.recipes.load import at_once, breaks
from tests.reliability.faults.proxy import proxy_to
from tests.support.databases import Database

# --------------------------------------------------------------------------------------------------
# Moving money: the total stays constant, each balance is the sum of its entries, no deadlocks.

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


# --------------------------------------------------------------------------------------------------
# A payment is booked once, even if the proxy dies in COMMIT.

AMOUNT, TIMES = 10, 12


def fill(program: Any) -> None:
    with program.Session.begin() as session:
        session.execute(sa.delete(program.Booking))
        session.merge(program.Account(id=1, balance=1000))
    program.receipts.clear()


def booked(program: Any) -> tuple[int, int, int]:
    """Return the number of bookings: by the balance, the bookings and the receipts."""
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


# --------------------------------------------------------------------------------------------------
# An idempotency key: one debit and one answer, however often the payment is sent.

KEYS, AMOUNT_IDEMPOTENCY_KEY, TIMES_IDEMPOTENCY_KEY = [f"key-{n}" for n in range(12)], 10, 4
BALANCE = 8 * AMOUNT_IDEMPOTENCY_KEY  # not enough for all
READ = "found := session.query(Payment).filter_by(**of_client).first()"
UNLOCKED = (
    "session.get_or_create_entity(Payment, of_client, defaults=asked)",
    f"({READ}) or session.merge(Payment(**of_client, **asked)), found is None",
)


def load_idempotency_key(program: Any) -> None:
    with program.Session.begin() as session:
        session.execute(sa.delete(program.Payment))
        session.merge(program.Account(id=1, balance=BALANCE))
    answers = at_once(
        [
            partial(program.pay, "ann", key, 1, AMOUNT_IDEMPOTENCY_KEY)
            for key in KEYS
            for _ in range(TIMES_IDEMPOTENCY_KEY)
        ]
    )
    for first in range(0, len(answers), TIMES_IDEMPOTENCY_KEY):
        assert all(
            answer == answers[first] for answer in answers[first : first + TIMES_IDEMPOTENCY_KEY]
        )
    assert (
        sum(answer["paid"] for answer in answers[::TIMES_IDEMPOTENCY_KEY])
        == BALANCE // AMOUNT_IDEMPOTENCY_KEY
    )
    with program.Session() as session:
        assert session.get_one(program.Account, 1).balance == 0
    with pytest.raises(program.KeyReused):
        program.pay("ann", KEYS[0], 1, AMOUNT_IDEMPOTENCY_KEY + 1)
    assert (
        program.pay("bob", KEYS[0], 1, AMOUNT_IDEMPOTENCY_KEY + 1)["paid"] is False
    )  # a key of their own


def test_a_payment_is_done_once(recipe: Recipe) -> None:
    load_idempotency_key(recipe("idempotency-key"))


@pytest.mark.databases("postgresql")
def test_without_the_lock_it_goes_wrong(recipe: Recipe) -> None:
    program = recipe("idempotency-key", UNLOCKED)
    assert breaks(lambda: load_idempotency_key(program), DBAPIError)


# --------------------------------------------------------------------------------------------------
# Gapless numbers: 1, 2, 3 for each tenant and year, whatever rolls back.

RANGES = [(tenant, year) for tenant in ("ann", "bob") for year in (2026, 2027)]
UNLOCKED_GAPLESS_NUMBERS = (
    ("class_=LockingSession", 'class_=LockingSession, guard="off"'),
    (
        'session.get_or_create_entity(NumberRange, (tenant, year), defaults={"last": 0})',
        "session.merge(session.get(NumberRange, (tenant, year)) or NumberRange(tenant=tenant, year=year, last=0)), True",
    ),
)


def load_gapless_numbers(program: Any) -> None:
    calls = [
        partial(program.write_invoice, *numbers, total)
        for numbers in RANGES
        for total in (1, 2, 0, 3, 0, 4, 5, 6)  # the third and the fifth are rolled back
    ]
    at_once(calls, ValueError)
    found = defaultdict(list)
    with program.Session() as session:
        for tenant, year, number in session.execute(
            sa.select(program.Invoice.tenant, program.Invoice.year, program.Invoice.number)
        ):
            found[tenant, year].append(number)
        count = session.scalar(sa.select(sa.func.count(program.Invoice.id))) // len(RANGES)
    assert {key: sorted(numbers) for key, numbers in found.items()} == {
        key: list(range(1, count + 1)) for key in RANGES
    }
    assert count % 6 == 0


def test_no_gap_and_no_number_twice(recipe: Recipe) -> None:
    program = recipe("gapless-numbers")
    load_gapless_numbers(program)
    load_gapless_numbers(program)


@pytest.mark.databases("postgresql")
def test_without_the_lock_it_goes_wrong_gapless_numbers(recipe: Recipe) -> None:
    program = recipe("gapless-numbers", *UNLOCKED_GAPLESS_NUMBERS)
    assert breaks(lambda: load_gapless_numbers(program), IntegrityError)
