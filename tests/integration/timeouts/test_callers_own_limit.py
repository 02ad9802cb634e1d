"""PostgreSQL: a lock_timeout that the caller has set for the transaction is there again after."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.integration.asyncio.drivers import in_a_loop, opened, url_for
from tests.integration.locking.steps import recorded
from tests.integration.timeouts.ways import SHORT, WAYS, given_up, hold
from tests.support.databases import PIPELINED, Database
from tests.support.models import Order

pytestmark = pytest.mark.databases("postgresql")

ForUpdate = LockOptions.ForUpdate
Session = LockingSession


@pytest.fixture(params=["pipelined", "one by one"], autouse=True)
def pipelined(
    request: pytest.FixtureRequest, database: Database, monkeypatch: pytest.MonkeyPatch
) -> bool:
    """Go through everything without psycopg's pipeline as well."""
    if request.param == "one by one":
        if database.column == PIPELINED:
            pytest.skip("a session with pipeline=True needs it")
        monkeypatch.setattr(psycopg.Pipeline, "is_supported", lambda: False)
    return bool(request.param == "pipelined")


def limit_of(session: Session) -> str:
    limit: str = session.connection().exec_driver_sql("SHOW lock_timeout").scalar_one()
    return limit


def set_limit(session: Session, limit: str) -> None:
    session.connection().exec_driver_sql(f"SET LOCAL lock_timeout = '{limit}'")


def test_after_each_way_to_lock(session: Session) -> None:
    for name, way in WAYS.items():
        session.begin()
        set_limit(session, "7s")
        way(session, lock_timeout=29.5)
        assert limit_of(session) == "7s", name
        way(session, lock_timeout=1e-9)  # held already, or locked once more
        assert limit_of(session) == "7s", name
        session.rollback()
        assert limit_of(session) == "0", name
        session.rollback()


def test_inside_savepoints(session: Session, other: Session) -> None:
    hold(other)
    session.begin()
    set_limit(session, "7s")
    with session.begin_nested():
        set_limit(session, "8s")
        with session.begin_nested():
            session.get_one_entity(Order, 2, ForUpdate, lock_timeout=29.5)
            assert limit_of(session) == "8s"
        for name in ("get_entity", "set of two tables", "of two tables"):
            with suppress(LockNotAvailable), session.begin_nested():
                WAYS[name](session, lock_timeout=SHORT)
            assert limit_of(session) == "8s"
    assert limit_of(session) == "8s"  # SET LOCAL lasts to the end of the transaction
    assert list(session.held_locks) == [(Order, (2,))]
    session.rollback()


def test_one_that_was_set_in_the_savepoint_goes_with_it(session: Session) -> None:
    session.begin()
    set_limit(session, "7s")
    savepoint = session.begin_nested()
    set_limit(session, "8s")
    session.get_one_entity(Order, 2, ForUpdate, lock_timeout=29.5)
    savepoint.rollback()
    assert limit_of(session) == "7s"
    session.get_one_entity(Order, 2, ForUpdate, lock_timeout=29.5)
    assert limit_of(session) == "7s"
    session.rollback()


def test_the_limit_counts_only_where_it_was_asked_for(session: Session, other: Session) -> None:
    hold(other)
    session.begin()
    set_limit(session, "100ms")
    session.get_one_entity(Order, 2, ForUpdate, lock_timeout=29.5)
    assert "within the server's own limit" in str(given_up(session, WAYS["get_entity"]))


def test_of_a_lent_connection(engine: sa.Engine, other: Session) -> None:
    hold(other)
    with engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("SET LOCAL lock_timeout = '7s'")
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            session.get_one_entity(Order, 2, ForUpdate, lock_timeout=29.5)
            assert limit_of(session) == "7s"
            session.commit()
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            given_up(session, WAYS["get_entity"], lock_timeout=SHORT)
        assert connection.exec_driver_sql("SHOW lock_timeout").scalar_one() == "7s"


@pytest.mark.not_databases(PIPELINED)
@in_a_loop
async def test_by_other_drivers(documents: Database) -> None:
    for driver in ("asyncpg", "psycopg"):
        async with opened(url_for(documents, driver)) as session:

            async def limit(session: Any = session) -> Any:
                return await session.scalar(sa.text("SELECT current_setting('lock_timeout')"))

            await session.execute(sa.text("SET LOCAL lock_timeout = '7s'"))
            await session.get_one_entity(Order, 1, ForUpdate, lock_timeout=5.5)
            assert await limit() == "7s", driver
            async with session.begin_nested():
                orders = session.entity_set(Order, ForUpdate, lock_timeout=5.5)
                assert len((await session.scalars(orders)).all()) == 2
                assert await limit() == "7s", driver
            await session.rollback()
            assert await limit() == "0", driver


def test_without_a_limit_of_ours_nothing_is_set(
    engine: sa.Engine, session: Session, pipelined: bool
) -> None:
    with recorded(engine) as statements:
        session.get_one_entity(Order, 1, ForUpdate)
        session.rollback()
        session.get_one_entity(Order, 1, ForUpdate, lock_timeout=0)
    assert not [one for one in statements if "lock_timeout" in one]
    session.rollback()
    with recorded(engine) as statements:
        session.get_one_entity(Order, 1, ForUpdate, lock_timeout=5)
    reported = [one for one in statements if "lock_timeout" in one]
    assert len(reported) == (0 if pipelined else 2)  # of a pipeline, SQLAlchemy knows nothing
