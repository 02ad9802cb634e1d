"""PostgreSQL by psycopg: a lock_timeout costs no round trip, and is not put back at the price of one.

Where the transaction has not begun it saves one: BEGIN travels with the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions
from sa_doclock.dialects import strategies
from tests.integration.asyncio.drivers import in_a_loop, opened, url_for
from tests.integration.timeouts.ways import WAYS, Way
from tests.integration.timeouts.wire import Wire, over, wire_to
from tests.support.databases import PIPELINED, Database
from tests.support.models import Customer, Order
from tests.support.poolers import COUNTS_ROUND_TRIPS

pytestmark = [pytest.mark.databases("postgresql"), COUNTS_ROUND_TRIPS]

ForUpdate = LockOptions.ForUpdate
Session = LockingSession
each_way = pytest.mark.parametrize("name", [name for name in WAYS if name != "locked"])


@pytest.fixture
def wire(documents: Database) -> Iterator[Wire]:
    wire = wire_to(documents.url)
    yield wire
    wire.close()


@pytest.fixture
def session(documents: Database, wire: Wire) -> Iterator[Session]:
    """Open a session through the wire, on a connection that is in the pool already."""
    through = sa.create_engine(over(wire, documents.url), pool_size=1, max_overflow=0)
    with Session(through) as session:
        session.get_one_entity(Order, 1, ForUpdate)  # asks what is asked once for a table
        session.rollback()
        yield session
    through.dispose()


def trips(wire: Wire, session: Session, action: Callable[[Session], Any]) -> int:
    """Count the round trips of the action alone; what ends the transaction is not counted."""
    with wire.counting() as counted:
        kept = action(session)
    session.rollback()
    del kept
    return counted[0]


def test_the_wire_counts(wire: Wire, session: Session) -> None:
    one = sa.text("SELECT 1")
    assert trips(wire, session, lambda session: session.scalar(one)) == 2  # and BEGIN
    assert trips(wire, session, lambda session: [session.scalar(one) for _ in range(5)]) == 6


@each_way
def test_a_limit_costs_none(wire: Wire, session: Session, name: str) -> None:
    way: Way = WAYS[name]
    free = trips(wire, session, way)
    for _ in range(2):
        assert trips(wire, session, partial(way, lock_timeout=29.5)) <= free


def test_nor_in_a_transaction_of_the_callers(wire: Wire, session: Session) -> None:
    def lock(session: Session, **how: Any) -> Any:
        return session.get_one(Customer, 1), session.get_one_entity(Order, 1, ForUpdate, **how)

    assert trips(wire, session, lock) == trips(wire, session, partial(lock, lock_timeout=5)) == 3


@pytest.mark.not_databases(PIPELINED)
def test_the_header_and_its_parts_take_two_with_begin(wire: Wire, session: Session) -> None:
    document = partial(WAYS["get_document"], lock_timeout=29.5)
    assert trips(wire, session, document) == 2


@pytest.mark.not_databases(PIPELINED)
@in_a_loop
async def test_nor_under_asyncio(documents: Database, wire: Wire) -> None:
    through = over(wire, url_for(documents, "psycopg").render_as_string(hide_password=False))
    async with opened(through, pool_size=1, max_overflow=0) as session:
        await session.get_one_entity(Order, 1, ForUpdate)
        await session.rollback()
        counts = []
        for seconds in (None, 29.5):
            with wire.counting() as counted:
                await session.get_one_entity(Order, 1, ForUpdate, lock_timeout=seconds)
            counts += counted
            await session.rollback()
    assert counts == [2, 1]


@pytest.mark.not_databases(PIPELINED)
def test_without_a_pipeline_it_costs_two(
    wire: Wire, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psycopg.Pipeline, "is_supported", lambda: False)
    strategies.pop(session.get_bind().dialect)
    way = WAYS["get_entity"]
    trips(wire, session, way)  # makes it again, and asks the server
    assert trips(wire, session, partial(way, lock_timeout=29.5)) == trips(wire, session, way) + 2
