"""Enough orders to sort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support.models import Base, Order, Voucher

Run = Callable[..., list[Any]]


@pytest.fixture
def twenty(elsewhere: Run) -> range:
    """Insert orders, vouchers and leases up to number 20; return the numbers."""
    new = range(20, 2, -1)  # PostgreSQL stores the rows in this order
    leases = [{"id": ident, "kind": "lease", "total": ident} for ident in new]
    tables = Base.metadata.tables
    elsewhere(
        sa.insert(Order).values([{"id": i, "total": i, "remark": ""} for i in new]),
        sa.insert(Voucher).values([{"year": 2025, "number": i, "total": i} for i in new]),
        tables["lk_contract"].insert().values(leases),
        tables["lk_lease"].insert().values([{"id": ident, "rent": 7} for ident in new]),
    )
    return range(1, 21)
