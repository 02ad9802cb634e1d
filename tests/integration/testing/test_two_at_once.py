"""two_at_once() finds the lost update of each wrong endpoint, and none in the right ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, sessionmaker

from sa_doclock import LockingSession
from sa_doclock.testing import two_at_once
from tests.integration.testing.endpoints import RIGHT, WRONG, Endpoint, Shop
from tests.support.models import Order

pytestmark = pytest.mark.read_committed

Elsewhere = Callable[..., list[Any]]
BOTH = 50  # 30, and ten of each
EACH_RUN = [2, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.exhaustive])]


@pytest.fixture
def shop(engine: sa.Engine) -> Shop:
    return Shop(
        sessionmaker(engine, class_=LockingSession),
        sessionmaker(engine),
        sessionmaker(engine.execution_options(isolation_level="AUTOCOMMIT"), class_=Session),
        cached_total=30,
    )


def is_right(
    shop: Shop, endpoint: Endpoint, elsewhere: Elsewhere, start_over: Callable[[], None]
) -> bool:
    """Run the endpoint twice at once; return whether both have returned and both are stored."""
    start_over()
    outcomes = two_at_once(partial(endpoint, shop, 1), partial(endpoint, shop, 2))
    ((total,),) = elsewhere(sa.select(Order.total).where(Order.id == 1))
    errors = [one.error for one in outcomes if one.error is not None]
    if errors:
        print(errors)
    return not errors and total == BOTH


@pytest.mark.parametrize("runs", EACH_RUN)
@pytest.mark.parametrize("endpoint", WRONG, ids=lambda one: one.__name__)
def test_a_wrong_endpoint_is_found_each_time(
    shop: Shop,
    endpoint: Endpoint,
    elsewhere: Elsewhere,
    start_over: Callable[[], None],
    runs: int,
) -> None:
    found = [is_right(shop, endpoint, elsewhere, start_over) for _ in range(runs)]
    assert found == [False] * runs


@pytest.mark.parametrize("runs", EACH_RUN)
@pytest.mark.parametrize("endpoint", RIGHT, ids=lambda one: one.__name__)
def test_a_right_endpoint_passes_each_time(
    shop: Shop,
    endpoint: Endpoint,
    elsewhere: Elsewhere,
    start_over: Callable[[], None],
    runs: int,
) -> None:
    found = [is_right(shop, endpoint, elsewhere, start_over) for _ in range(runs)]
    assert found == [True] * runs
