"""Gapless numbers: 1, 2, 3 for each tenant and year, whatever is rolled back."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from tests.recipes.conftest import Recipe
from tests.recipes.load import at_once, breaks

RANGES = [(tenant, year) for tenant in ("ann", "bob") for year in (2026, 2027)]
UNLOCKED = (
    ("class_=LockingSession", 'class_=LockingSession, guard="off"'),
    (
        'session.get_or_create_entity(NumberRange, (tenant, year), defaults={"last": 0})',
        "session.merge(session.get(NumberRange, (tenant, year)) or NumberRange(tenant=tenant, year=year, last=0)), True",
    ),
)


def load(program: Any) -> None:
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
    load(program)
    load(program)


@pytest.mark.databases("postgresql")
def test_without_the_lock_it_goes_wrong(recipe: Recipe) -> None:
    program = recipe("gapless-numbers", *UNLOCKED)
    assert breaks(lambda: load(program), IntegrityError)
