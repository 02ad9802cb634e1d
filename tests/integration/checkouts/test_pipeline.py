"""In a pipeline the check-out query travels with the lock: no additional round trip."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import CheckedOut, LockingSession, LockOptions
from tests.integration.checkouts.models import CHECKOUTS, Order
from tests.integration.pipeline.models import ON_POSTGRESQL
from tests.integration.timeouts.ways import Wire, over, wire_to
from tests.support.databases import Database
from tests.support.poolers import COUNTS_ROUND_TRIPS

pytestmark = [*ON_POSTGRESQL, COUNTS_ROUND_TRIPS]
ForUpdate = LockOptions.ForUpdate


@pytest.fixture
def wire(database: Database, engine: sa.Engine) -> Iterator[Wire]:
    """Run a proxy in front of the server, with the tables created."""
    assert engine
    wire = wire_to(database.url)
    yield wire
    wire.close()


@pytest.fixture
def through(wire: Wire, database: Database) -> Iterator[sa.Engine]:
    """Make an engine with one connection through the proxy."""
    engine = sa.create_engine(
        over(wire, database.url),
        connect_args=database.connect_args,
        pool_size=1,
        max_overflow=0,
    )
    yield engine
    engine.dispose()


def trips(wire: Wire, engine: sa.Engine, lock: Any, **options: Any) -> int:
    """Return the round trips of a lock on a warmed-up engine."""
    make = sessionmaker(engine, class_=LockingSession, **options)
    numbers = []
    for _ in range(2):
        with make() as session, wire.counting() as counted:
            assert lock(session) is not None
        numbers.append(counted[0])
    return numbers[-1]


@pytest.mark.parametrize("method", ["get_entity", "get_document"])
def test_not_one_round_trip_more(wire: Wire, through: sa.Engine, method: str) -> None:
    def lock(session: LockingSession) -> Any:
        found = getattr(session, method)(Order, 1, ForUpdate, lock_timeout=5)
        return [found, *(found.lines if method == "get_document" else ())]

    without = trips(wire, through, lock, pipeline=True)
    assert trips(wire, through, lock, pipeline=True, checkouts=CHECKOUTS) == without
    assert trips(wire, through, lock, checkouts=CHECKOUTS) > without


def test_what_came_along_is_obeyed(through: sa.Engine) -> None:
    make = sessionmaker(through, class_=LockingSession, pipeline=True, checkouts=CHECKOUTS)
    with make() as session:
        mine = session.check_out(Order, 1, "ann")
        session.commit()
        for method in ("get_entity", "get_document"):
            with pytest.raises(CheckedOut):
                getattr(session, method)(Order, 1, ForUpdate)
            assert getattr(session, method)(Order, 1, ForUpdate, checkout=mine).id == 1
            session.rollback()
        assert session.get_entity(Order, 7, ForUpdate) is None
        assert session.get_document(Order, 2, ForUpdate) is not None
