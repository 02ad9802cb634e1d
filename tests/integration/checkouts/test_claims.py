"""claim_each() of documents that somebody may have checked out: those are left out."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, claim_each
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
