"""PostgreSQL with psycopg: the limit travels in a pipeline, and leaves nothing behind."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.pq import PipelineStatus
from sqlalchemy.exc import PendingRollbackError, ProgrammingError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, selectinload

from sa_doclock import LockingSession, LockNotAvailable, LockNotSupported, LockOptions
from sa_doclock.dialects import strategies
from tests.integration.asyncio.drivers import in_a_loop, opened, url_for
from tests.integration.locking.steps import seen
from tests.integration.timeouts.ways import SHORT, WAYS, Way, Wire, given_up, hold, over, wire_to
from tests.support.actors import Actor
from tests.support.databases import PIPELINED, Database
from tests.support.models import Base, Customer, Lease, Order
from tests.support.poolers import COUNTS_ROUND_TRIPS
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.databases("postgresql")

ForUpdate = LockOptions.ForUpdate
Session = LockingSession


class Elsewhere(DeclarativeBase):
    """An entity without a table in any database."""


class Nowhere(Elsewhere):
    __tablename__ = "lk_nowhere"
    id: Mapped[int] = mapped_column(primary_key=True)


def pipeline_of(session: Session) -> PipelineStatus:
    driver: Any = session.connection().connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return PipelineStatus(driver.pgconn.pipeline_status)


def test_it_is_over_after_each_way_to_lock(session: Session) -> None:
    for name, way in WAYS.items():
        way(session, lock_timeout=5.5)
        assert pipeline_of(session) is PipelineStatus.OFF, name
        session.rollback()


def test_it_is_over_after_a_time_out(
    session: Session, other: Session, caplog: pytest.LogCaptureFixture
) -> None:
    hold(other)
    with caplog.at_level(logging.DEBUG, "psycopg"):
        for way in WAYS.values():
            session.begin()
            driver = session.connection().connection.driver_connection
            given_up(session, way, lock_timeout=SHORT)
            session.rollback()
            assert pipeline_of(session) is PipelineStatus.OFF
            assert session.connection().connection.driver_connection is driver
            session.rollback()
    assert not [
        record
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name.startswith("psycopg")
    ]


def test_what_was_loaded_lazily_comes_after_it(session: Session) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate, lock_timeout=5.5)
    assert seen(order) == (30, [10, 20])
    session.rollback()
    how: dict[str, Any] = {"options": [selectinload(Order.lines)], "lock_timeout": 5.5}
    order = session.get_one_entity(Order, 1, ForUpdate, **how)
    assert seen(order) == (30, [10, 20])
    session.rollback()
    (order,) = session.scalars(
        session.entity_set(Order, ForUpdate, lock_timeout=5.5)
        .where(Order.id == 1)
        .options(selectinload(Order.lines))
    )
    assert seen(order) == (30, [10, 20])


def test_a_row_that_is_not_there_is_none(session: Session) -> None:
    assert session.get_entity(Order, 99, ForUpdate, lock_timeout=5.5) is None
    assert session.get_entity(Lease, 99, ForUpdate, lock_timeout=5.5) is None
    assert session.get_entities(Order, [98, 99], ForUpdate, lock_timeout=5.5) == []
    assert pipeline_of(session) is PipelineStatus.OFF
    assert not session.held_locks


def test_a_row_that_was_replaced_meanwhile_is_found(
    alice: Actor[Session], bob: Actor[Session]
) -> None:
    def replace(session: Session) -> None:
        table = Base.metadata.tables["lk_order"]
        connection = session.connection()
        session.get_one_entity(Order, 2, ForUpdate)
        connection.execute(sa.delete(Base.metadata.tables["lk_line"]))
        connection.execute(sa.delete(table).where(table.c.id == 2))
        connection.execute(sa.insert(table).values(id=2, total=77, remark=""))

    alice.does(replace)
    queued = bob.starts(
        lambda session: session.get_one_entity(Order, 2, ForUpdate, lock_timeout=29.5)
    )
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(lambda session: session.commit())
    assert queued.result().total == 77
    assert bob.does(pipeline_of) is PipelineStatus.OFF


def test_a_statement_that_the_server_refuses(session: Session) -> None:
    session.begin()
    session.get_one(Customer, 1)
    with pytest.raises(ProgrammingError, match="lk_nowhere"):
        session.get_entity(Nowhere, 1, ForUpdate, lock_timeout=5.5)
    assert session.connection().connection.driver_connection is not None
    with pytest.raises(PendingRollbackError):
        session.scalar(sa.text("SELECT 1"))
    session.rollback()
    assert pipeline_of(session) is PipelineStatus.OFF
    assert session.get_one_entity(Order, 1, ForUpdate, lock_timeout=5.5).total == 30


def test_a_set_that_cannot_be_locked(session: Session) -> None:
    statement = session.entity_set(Order, ForUpdate, lock_timeout=5.5)
    for condition, error in ((sa.text("1 / (total - total) = 1"), sa.exc.DBAPIError),):
        with pytest.raises(error) as caught:
            session.scalars(statement.where(condition)).all()
        assert not isinstance(caught.value, (LockNotAvailable, LockNotSupported))
        assert not session.in_transaction()
        assert pipeline_of(session) is PipelineStatus.OFF


def test_an_error_in_a_savepoint_is_undone_with_it(session: Session, other: Session) -> None:
    hold(other)
    session.begin()
    session.add(Customer(id=9, name="new"))
    session.flush()
    for name in ("get_entity", "of two tables", "entity_set"):
        with pytest.raises(LockNotAvailable), session.begin_nested():
            WAYS[name](session, lock_timeout=SHORT)
        assert pipeline_of(session) is PipelineStatus.OFF
    session.commit()
    assert session.get_one(Customer, 9).name == "new"


def test_a_program_that_has_a_pipeline_open_can_lock_in_it(
    session: Session, make_session: Callable[..., Session]
) -> None:
    driver: Any = session.connection().connection.driver_connection
    with driver.pipeline():
        order = session.get_one_entity(Order, 1, ForUpdate, lock_timeout=5.5)
        assert order.total == 30
    assert pipeline_of(session) is PipelineStatus.OFF
    given_up(make_session(), WAYS["get_entity"], lock_timeout=SHORT)


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_transaction_that_has_ended_in_that_pipeline_is_begun_anew(
    session: Session, make_session: Callable[..., Session], end: str
) -> None:
    assert session.get_one_entity(Order, 1, ForUpdate)  # runs the queries sent once per table
    session.rollback()
    driver: Any = session.connection().connection.driver_connection
    with driver.pipeline():
        driver.execute("SELECT 1")
        driver.execute(end)  # its answer is still pending
        assert session.get_one_entity(Order, 1, ForUpdate, lock_timeout=5.5).total == 30
        given_up(make_session(), WAYS["get_entity"], lock_timeout=SHORT)


# --------------------------------------------------------------------------------------------------
# PostgreSQL with psycopg: setting a lock_timeout, or restoring it, does not cost a round trip.
#
# If the transaction has not begun, it saves one: BEGIN travels with the limit.

each_way = pytest.mark.parametrize("name", [name for name in WAYS if name != "locked"])


@pytest.fixture
def wire(documents: Database) -> Iterator[Wire]:
    wire = wire_to(documents.url)
    yield wire
    wire.close()


@pytest.fixture
def session_round_trips(documents: Database, wire: Wire) -> Iterator[Session]:
    """Open a session through the proxy, on a connection that is in the pool already."""
    through = sa.create_engine(over(wire, documents.url), pool_size=1, max_overflow=0)
    with Session(through) as session:
        session.get_one_entity(Order, 1, ForUpdate)  # runs the queries sent once per table
        session.rollback()
        yield session
    through.dispose()


def trips(wire: Wire, session: Session, action: Callable[[Session], Any]) -> int:
    """Count the round trips of the action, without the end of the transaction."""
    with wire.counting() as counted:
        kept = action(session)
    session.rollback()
    del kept
    return counted[0]


@COUNTS_ROUND_TRIPS
def test_the_wire_counts(wire: Wire, session_round_trips: Session) -> None:
    one = sa.text("SELECT 1")
    assert trips(wire, session_round_trips, lambda session: session.scalar(one)) == 2  # and BEGIN
    assert (
        trips(wire, session_round_trips, lambda session: [session.scalar(one) for _ in range(5)])
        == 6
    )


@COUNTS_ROUND_TRIPS
@each_way
def test_a_limit_costs_none(wire: Wire, session_round_trips: Session, name: str) -> None:
    way: Way = WAYS[name]
    free = trips(wire, session_round_trips, way)
    for _ in range(2):
        assert trips(wire, session_round_trips, partial(way, lock_timeout=29.5)) <= free


@COUNTS_ROUND_TRIPS
def test_nor_in_a_transaction_of_the_callers(wire: Wire, session_round_trips: Session) -> None:
    def lock(session: Session, **how: Any) -> Any:
        return session.get_one(Customer, 1), session.get_one_entity(Order, 1, ForUpdate, **how)

    assert (
        trips(wire, session_round_trips, lock)
        == trips(wire, session_round_trips, partial(lock, lock_timeout=5))
        == 3
    )


@COUNTS_ROUND_TRIPS
@pytest.mark.not_databases(PIPELINED)
def test_the_header_and_its_parts_take_two_with_begin(
    wire: Wire, session_round_trips: Session
) -> None:
    document = partial(WAYS["get_document"], lock_timeout=29.5)
    assert trips(wire, session_round_trips, document) == 2


@COUNTS_ROUND_TRIPS
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


@COUNTS_ROUND_TRIPS
@pytest.mark.not_databases(PIPELINED)
def test_without_a_pipeline_it_costs_two(
    wire: Wire, session_round_trips: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psycopg.Pipeline, "is_supported", lambda: False)
    strategies.pop(session_round_trips.get_bind().dialect)
    way = WAYS["get_entity"]
    trips(wire, session_round_trips, way)  # makes it again, and queries the server
    assert (
        trips(wire, session_round_trips, partial(way, lock_timeout=29.5))
        == trips(wire, session_round_trips, way) + 2
    )
