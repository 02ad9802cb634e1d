"""explore() finds each of the seeded races, and none where they are cured."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, sessionmaker

from sa_doclock import LockingSession
from sa_doclock.testing import Exploration, Outcome, explore
from tests.integration.testing.endpoints import Endpoint, Shop
from tests.integration.testing.races import RACES, Race

pytestmark = pytest.mark.read_committed


@pytest.fixture
def shop(engine: sa.Engine) -> Shop:
    return Shop(
        sessionmaker(engine, class_=LockingSession),
        sessionmaker(engine),
        sessionmaker(engine.execution_options(isolation_level="AUTOCOMMIT"), class_=Session),
        cached_total=30,
    )


@pytest.fixture
def run(
    shop: Shop, elsewhere: Callable[..., list[Any]], start_over: Callable[[], None]
) -> Callable[..., Exploration]:
    """Return a function that explores a race."""

    def run(race: Race, functions: tuple[Endpoint, Endpoint], **options: Any) -> Exploration:
        def holds(first: Outcome, second: Outcome) -> bool:
            return race.holds(elsewhere, first, second)

        first, second = (partial(one, shop, number) for number, one in enumerate(functions, 1))
        return explore(first, second, before=start_over, invariant=holds, **options)

    return run


@pytest.mark.parametrize("race", RACES, ids=[race.name for race in RACES])
def test_a_race_is_found_and_its_cure_holds(run: Callable[..., Exploration], race: Race) -> None:
    found = run(race, race.wrong)
    print(race.name, found.runs, found.complete, found.incomplete_because, len(found.failures))
    for f in found.failures:
        print(f.anomaly, f.order)
    assert found.complete, found.incomplete_because
    assert race.anomaly in {failure.anomaly for failure in found.failures}
    with pytest.raises(AssertionError, match=race.anomaly):
        found.check()
    (again,) = run(race, race.wrong, order=found.failures[0].order).failures
    assert again.order == found.failures[0].order
    cured = run(race, race.right)
    print(cured.runs, cured)
    assert (cured.complete, cured.failures) == (True, ()), cured
    cured.check()
