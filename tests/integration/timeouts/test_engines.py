"""Limits on asynchronous engines, two engines, lost connections and streaming engines."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import (
    AsyncLockingSession,
    LockingSession,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    with_lock,
)
from tests.integration.asyncio.drivers import connected, drivers_of, in_a_loop, url_for
from tests.integration.locking.connections import patience_of
from tests.integration.timeouts.ways import SHORT, hold
from tests.integration.timeouts.ways import WAYS as WAYS_STREAMING_ENGINE
from tests.integration.timeouts.ways import given_up as given_up_streaming_engine
from tests.integration.timeouts.ways import given_up as given_up_two
from tests.support.databases import Database
from tests.support.models import Clause, Contract, Lease, Order
from tests.support.poolers import skip_server_cursor

# --------------------------------------------------------------------------------------------------
# AsyncLockingSession has the same limits as LockingSession, awaited.

ForUpdate = LockOptions.ForUpdate
Session = AsyncLockingSession


async def by_block(session: Session, **how: Any) -> None:
    async with session.locked(Order, 1, **how):
        pass


async def by_set(session: Session, **how: Any) -> None:
    await session.scalars(session.entity_set(Order, ForUpdate, **how))


WAYS: Mapping[str, Callable[..., Awaitable[object]]] = {
    "get_entity": lambda session, **how: session.get_entity(Order, 1, ForUpdate, **how),
    "get_one_entity": lambda session, **how: session.get_one_entity(Lease, 1, ForUpdate, **how),
    "get_entities": lambda session, **how: session.get_entities(Order, [1, 2], ForUpdate, **how),
    "get_document": lambda session, **how: session.get_document(Order, 1, ForUpdate, **how),
    "get_documents": lambda session, **how: session.get_documents(Order, [1], ForUpdate, **how),
    "locked": by_block,
    "entity_set": by_set,
}


async def given_up(session: Session, attempt: Awaitable[object]) -> LockNotAvailable:
    with pytest.raises(LockNotAvailable) as caught:
        await attempt
    assert caught.value.waited > 0
    assert not session.in_transaction()
    return caught.value


def each_driver(play: Callable[[Session, str], Awaitable[None]], **options: Any) -> Any:
    """Run this with each driver of the database, while another session holds everything."""

    @in_a_loop
    async def test(documents: Database) -> None:
        for driver in drivers_of(documents.column):
            async with connected(url_for(documents, driver)) as engine, Session(engine) as holder:
                await holder.get_one_entity(Order, 1, ForUpdate)
                await holder.get_one_entity(Lease, 1, ForUpdate)
                async with Session(engine, **options) as session:
                    await play(session, driver)

    return test


async def _every_way(session: Session, driver: str) -> None:
    for name, way in WAYS.items():
        error = await given_up(session, way(session, lock_timeout=SHORT))
        assert f"not granted within {SHORT:g} s" in str(error), (driver, name)
        error = await given_up(session, way(session, lock_timeout=0))
        assert "held by another transaction" in str(error), (driver, name)


async def _by_default(session: Session, driver: str) -> None:
    for name, way in WAYS.items():
        error = await given_up(session, way(session))
        assert f"not granted within {SHORT:g} s" in str(error), (driver, name)
    statement = with_lock(sa.select(Order), ForUpdate)
    assert "within 0.05 s" in str(await given_up(session, session.scalars(statement)))
    assert "within 0.06 s" in str(
        await given_up(session, WAYS["get_entity"](session, lock_timeout=0.06))
    )


async def _alongside(session: Session, _: str) -> None:
    passed = 0

    async def work() -> None:
        nonlocal passed
        while True:
            await asyncio.sleep(0)
            passed += 1

    working = asyncio.ensure_future(work())
    await given_up(session, WAYS["get_entity"](session, lock_timeout=SHORT))
    working.cancel()
    assert passed > 1


test_every_way_takes_the_limit = each_driver(_every_way)
test_the_sessions_own_limit_is_for_all = each_driver(_by_default, lock_timeout=SHORT)
test_others_of_the_loop_go_on_meanwhile = each_driver(_alongside)


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
def test_a_limit_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="lock_timeout"):
        AsyncLockingSession(lock_timeout=value)


@pytest.mark.databases("postgresql")
@in_a_loop
async def test_what_is_not_supported_is_reported_with_a_limit_as_without(
    documents: Database,
) -> None:
    for driver in drivers_of(documents.column):
        async with connected(url_for(documents, driver)) as engine, Session(engine) as session:
            await session.execute(sa.text("SET TRANSACTION READ ONLY"))
            with pytest.raises(LockNotSupported, match="read-only"):
                await session.get_entity(Order, 1, ForUpdate, lock_timeout=5)


# --------------------------------------------------------------------------------------------------
# Limits in a session with two engines, and in one that joined a Connection's transaction.


@pytest.fixture
def two(make_engine: Callable[..., sa.Engine], read_committed: dict[str, Any]) -> LockingSession:
    """Open a session with an engine for contracts and leases, and another for the rest."""
    one, other = make_engine(**read_committed), make_engine(**read_committed)
    return LockingSession(one, binds={Contract: other, Clause: other})


@pytest.mark.not_databases("sqlite")  # two engines would lock one file
def test_each_engine_has_the_limit_and_the_connection_its_own(
    two: LockingSession, other: LockingSession
) -> None:
    with two:
        two.begin()
        before = [patience_of(two.connection({"mapper": entity})) for entity in (Order, Lease)]
        two.get_one_entity(Order, 1, ForUpdate, lock_timeout=5.5)
        two.get_one_entity(Lease, 1, ForUpdate, lock_timeout=5)
        two.get_entities(Lease, [1, 2], ForUpdate, lock_timeout=5.5)
        after = [patience_of(two.connection({"mapper": entity})) for entity in (Order, Lease)]
        assert after == before
        assert len({id(two.connection({"mapper": entity})) for entity in (Order, Lease)}) == 2
        two.rollback()
        other.get_one_entity(Lease, 1, ForUpdate)
        two.get_one_entity(Order, 1, ForUpdate, lock_timeout=5.5)
        with pytest.raises(LockNotAvailable, match=r"^Lease 1 FOR UPDATE on .* not granted"):
            two.get_entity(Lease, 1, ForUpdate, lock_timeout=SHORT)
        two.rollback()
        assert not two.held_locks


def test_a_lent_connection(
    make_engine: Callable[..., sa.Engine], read_committed: dict[str, Any], other: LockingSession
) -> None:
    with make_engine(**read_committed).connect() as connection:
        before = patience_of(connection)
        connection.rollback()
        with LockingSession(connection, lock_timeout=5.5) as session:
            session.get_one_entity(Order, 1, ForUpdate).total = 31
            session.save_changes()
        other.get_one_entity(Order, 1, ForUpdate)
        with LockingSession(connection, lock_timeout=SHORT) as session:
            for how in ({}, {"lock_timeout": 0}, {"lock_timeout": 1e-6}):
                given_up_two(
                    session, lambda session, how=how: session.get_entity(Order, 1, ForUpdate, **how)
                )
        assert not connection.in_transaction()
        assert patience_of(connection) == before
        connection.rollback()


@pytest.mark.not_databases("sqlite")  # there a first read is outside any transaction
def test_a_lent_connection_whose_transaction_the_session_joins(
    make_engine: Callable[..., sa.Engine], read_committed: dict[str, Any], other: LockingSession
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    with make_engine(**read_committed).connect() as connection, connection.begin():
        before = patience_of(connection)
        with LockingSession(connection, join_transaction_mode="create_savepoint") as session:
            given_up_two(
                session, lambda session: session.get_entity(Order, 1, ForUpdate, lock_timeout=SHORT)
            )
            session.get_one_entity(Order, 2, ForUpdate, lock_timeout=5.5)
            session.commit()
        assert patience_of(connection) == before


# --------------------------------------------------------------------------------------------------
# A connection lost before a lock with a limit raises SQLAlchemy's error, not the driver's.

KILL = {
    "postgresql": "SELECT pg_terminate_backend({}, 10000)",  # returns when it is gone
    "mysql": "KILL {}",
    "mariadb": "KILL {}",
}
OWN_ID = {
    "postgresql": "SELECT pg_backend_pid()",
    "mysql": "SELECT CONNECTION_ID()",
    "mariadb": "SELECT CONNECTION_ID()",
}


@pytest.mark.read_committed
@pytest.mark.databases(*KILL)
@pytest.mark.parametrize("seconds", [None, 0, 0.3, 60])
def test_the_error_is_sqlalchemys_and_the_session_goes_on(
    session: LockingSession, database: Database, seconds: float | None
) -> None:
    own = session.scalar(sa.text(OWN_ID[database.name]))
    with database.observer().connect() as observer:
        observer.exec_driver_sql(KILL[database.name].format(own))
    with pytest.raises(sa.exc.DBAPIError) as caught:
        session.get_one_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=seconds)
    assert caught.value.connection_invalidated
    session.rollback()
    order = session.get_one_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=seconds)
    assert order.total == 30


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("seconds", [None, 0, 0.3])
def test_nor_is_one_of_the_network_the_drivers(
    session: LockingSession, seconds: float | None
) -> None:
    """psycopg detects it while it sends the limit before the statement."""
    driver: Any = session.connection().connection.driver_connection
    with socket.socket(fileno=os.dup(driver.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)
    with pytest.raises(sa.exc.DBAPIError) as caught:
        session.get_one_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=seconds)
    assert caught.value.connection_invalidated
    session.rollback()
    assert session.get_one_entity(Order, 1, LockOptions.ForUpdate).total == 30


# --------------------------------------------------------------------------------------------------
# A lock on an engine that streams every statement waits no longer, and locks all rows.


@pytest.fixture
def streaming(engine: sa.Engine) -> Iterator[LockingSession]:
    """Open a session on the engine with ``stream_results``: server-side cursors."""
    with LockingSession(engine.execution_options(stream_results=True)) as session:
        yield session


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", WAYS_STREAMING_ENGINE)
def test_it_waits_as_long_as_it_was_asked_to(
    streaming: LockingSession, other: LockingSession, name: str
) -> None:
    hold(other)
    given_up_streaming_engine(streaming, WAYS_STREAMING_ENGINE[name], lock_timeout=SHORT)


@pytest.mark.timeout(30)
def test_so_does_a_named_lock(streaming: LockingSession, other: LockingSession) -> None:
    other.lock_key("import")
    with pytest.raises(LockNotAvailable):
        streaming.lock_key("import", lock_timeout=SHORT)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", [name for name in WAYS_STREAMING_ENGINE if name != "locked"])
def test_what_is_granted_is_held(
    database: Database, streaming: LockingSession, other: LockingSession, name: str
) -> None:
    if "document" in name:  # a server-side cursor reads the parts
        skip_server_cursor(database.column)
    WAYS_STREAMING_ENGINE[name](streaming, lock_timeout=29.5)
    assert streaming.held_locks
    for_one = "of two tables" if "two tables" in name else "get_entity"
    given_up_streaming_engine(other, WAYS_STREAMING_ENGINE[for_one], lock_timeout=SHORT)
