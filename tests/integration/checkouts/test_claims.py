"""claim_each() of documents that somebody may have checked out: those are left out."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, claim_each, lease_each
from tests.integration.checkouts.models import Order

pytestmark = pytest.mark.not_databases("sqlite-journal")
TODO = sa.select(Order).where(Order.total == 0)


WAYS: dict[str, dict[str, Any]] = {
    "alone": {},
    "batch": {"batch": 3},
    "one_per": {"one_per": Order.id},
}


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_it_is_skipped(factory: sessionmaker[LockingSession], options: dict[str, Any]) -> None:
    with factory() as session:
        session.check_out(Order, 2, "ann")
        session.commit()
    claims = claim_each(factory, TODO, **options)
    keys = []
    for claim in claims:
        with claim as order:
            order.total = 1
            keys.append(order.id)
    assert keys == [1, 3]
    assert (claims.report.processed, claims.report.skipped) == (2, 1)


MANY = 250
FIRST = 1_000


@pytest.mark.databases("sqlite", "postgresql")
@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_rows_that_others_have_checked_out_are_found_a_hundred_at_a_time(
    engine: sa.Engine, factory: sessionmaker[LockingSession], options: dict[str, Any]
) -> None:
    keys = range(FIRST, FIRST + MANY)
    with factory() as session:
        session.add_all([Order(id=key, total=2) for key in keys])
        session.flush()
        for key in keys:
            if key % 100 != 0:
                session.check_out(Order, key, "ann")
        session.commit()
    free = [key for key in keys if key % 100 == 0]
    todo = sa.select(Order).where(Order.total == 2).order_by(Order.id)
    claimed: list[int] = []

    def claim_all() -> None:
        for claim in claim_each(factory, todo, **options):
            with claim as order:
                claimed.append(order.id)

    def lease_all() -> None:
        for lease in lease_each(factory, todo, owner="bob"):
            with lease:
                claimed.append(lease.key)

    transactions = 0

    def count(_: object) -> None:
        nonlocal transactions
        transactions += 1

    sa.event.listen(engine, "begin", count)
    claim_all()
    assert claimed == free
    # Two reads of keys, one of the check-outs per hundred and claim, and a try and a claim for each.
    assert transactions <= 2 + MANY // 100 + 1 + 4 * len(free)
    claimed.clear()
    transactions = 0
    lease_all()
    sa.event.remove(engine, "begin", count)
    assert claimed == free
    assert transactions <= 2 + MANY // 100 + 1 + 3 * len(free)
