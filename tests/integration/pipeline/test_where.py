"""pipeline=True is never silently ignored, and leaves the rest unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.pq import PipelineStatus

from sa_doclock import AsyncLockingSession, LockingSession, LockNotSupported, LockOptions
from tests.integration.asyncio.drivers import connected, in_a_loop, url_for
from tests.integration.pipeline.models import ON_POSTGRESQL, Bill, Note
from tests.support.databases import PIPELINED, Database
from tests.support.models import Order

ForUpdate = LockOptions.ForUpdate
MESSAGE = "pipeline=True.* needs PostgreSQL with psycopg 3"


def on_postgresql(test: Any) -> Any:
    for mark in ON_POSTGRESQL:
        test = mark(test)
    return test


@pytest.mark.not_databases("postgresql")
def test_no_other_database_has_it(make_engine: Callable[..., sa.Engine]) -> None:
    ways: list[Callable[[LockingSession], object]] = [
        lambda session: session.get_entity(Order, 1, ForUpdate),
        lambda session: session.get(Order, 1),
        lambda session: session.lock_key("a name"),
    ]
    engine = make_engine()
    for way in ways:
        with (
            LockingSession(engine, pipeline=True) as session,
            pytest.raises(LockNotSupported, match=MESSAGE),
        ):
            way(session)
    with LockingSession(engine) as session:
        assert session.get_one_entity(Order, 1, ForUpdate).total == 30


@on_postgresql
@in_a_loop
async def test_nor_has_asyncpg(documents: Database) -> None:
    async with (
        connected(url_for(documents, "asyncpg")) as engine,
        AsyncLockingSession(engine, pipeline=True) as session,
    ):
        with pytest.raises(LockNotSupported, match=MESSAGE):
            await session.get_entity(Order, 1, ForUpdate)


@on_postgresql
def test_nor_has_an_old_libpq(documents: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psycopg.Pipeline, "is_supported", lambda: False)
    with (
        LockingSession(documents.engine(), pipeline=True) as session,
        pytest.raises(LockNotSupported, match="libpq 14 or later"),
    ):
        session.get_entity(Bill, 1, ForUpdate)


@on_postgresql
def test_two_phases_are_refused(engine: sa.Engine) -> None:
    with pytest.raises(ValueError, match="twophase=True exclude each other"):
        LockingSession(engine, pipeline=True, twophase=True)


@on_postgresql
@pytest.mark.parametrize("mode", ["rollback_only", "create_savepoint", "control_fully"])
def test_of_a_lent_connection_nothing_waits_for_a_commit_that_is_not_ours(
    engine: sa.Engine, elsewhere: sa.Engine, mode: Any
) -> None:
    numbers = sa.select(Note.number).order_by(Note.id)
    with engine.connect() as lent, lent.begin() as transaction:
        with LockingSession(lent, pipeline=True, join_transaction_mode=mode) as session:
            session.get_one_entity(Note, 1, ForUpdate).number = 50
            session.save_changes()
            if transaction.is_active:
                assert lent.scalars(numbers).all() == [50, 2, 3]
                transaction.commit()
        driver: Any = lent.connection.driver_connection
        assert driver.cursor_factory.__module__ == "psycopg"
    with elsewhere.connect() as connection:
        assert connection.scalars(numbers).all() == [50, 2, 3]


@on_postgresql
def test_of_a_lent_connection_without_a_transaction(
    engine: sa.Engine, elsewhere: sa.Engine
) -> None:
    with engine.connect() as lent:
        for number in (50, 51):
            with LockingSession(lent, pipeline=True) as session:
                session.get_one_entity(Note, 1, ForUpdate).number = number
                session.save_changes()
        lent.scalar(sa.text("SELECT 1"))
        driver: Any = lent.connection.driver_connection
        assert driver.pgconn.pipeline_status == PipelineStatus.OFF
    with elsewhere.connect() as connection:
        assert connection.scalar(sa.select(Note.number).where(Note.id == 1)) == 51


@on_postgresql
def test_of_two_databases_none_commits_before_all_have_taken_their_writes(
    bills: Database, elsewhere: sa.Engine
) -> None:
    binds = {Bill: bills.engine(), Note: bills.engine()}
    for total, number, fails in ((31, 50, False), (99, 100, True), (100, 51, False)):
        with LockingSession(binds=binds, pipeline=True) as session:
            session.get_one_entity(Bill, 1, ForUpdate).total = total
            session.get_one(Note, 1).number = number
            if fails:
                with pytest.raises(sa.exc.IntegrityError):
                    session.save_changes()
            else:
                session.save_changes()
        with elsewhere.connect() as connection:
            there = connection.scalar(sa.select(Bill.total).where(Bill.id == 1))
        assert there == (31 if fails else total)


@on_postgresql
def test_of_two_databases_none_commits_before_a_write_of_the_other_is_taken(
    bills: Database, elsewhere: sa.Engine
) -> None:
    binds = {Bill: bills.engine(), Note: bills.engine()}
    for _ in range(8):  # SQLAlchemy commits them in any order
        with LockingSession(binds=binds, pipeline=True) as session:
            session.get_one_entity(Bill, 1, ForUpdate).total = 99
            session.flush()  # its database gets no later statement
            session.get_one(Note, 1).number = 100
            with pytest.raises(sa.exc.IntegrityError):
                session.save_changes()
    with elsewhere.connect() as connection:
        assert connection.scalar(sa.select(Bill.total).where(Bill.id == 1)) == 30


@on_postgresql
def test_in_autocommit_each_statement_is_committed_by_itself(
    bills: Database, elsewhere: sa.Engine
) -> None:
    engine = bills.engine(isolation_level="AUTOCOMMIT")
    with LockingSession(engine, pipeline=True) as session:
        session.get_one(Bill, 1).total = 31
        session.get_one(Note, 1).number = 100
        with pytest.raises(sa.exc.IntegrityError):
            session.save_changes()
    with elsewhere.connect() as connection:
        assert connection.scalar(sa.select(Bill.total).where(Bill.id == 1)) == 31


@on_postgresql
def test_with_a_cursor_of_the_programs_own(bills: Database, elsewhere: sa.Engine) -> None:
    engine = bills.engine(connect_args={"cursor_factory": psycopg.ClientCursor})
    with LockingSession(engine, pipeline=True) as session:
        session.get_one_entity(Bill, 1, ForUpdate, lock_timeout=5).total = 31
        session.save_changes()
        driver: Any = session.connection().connection.driver_connection
        assert driver.cursor_factory is psycopg.ClientCursor
    with elsewhere.connect() as connection:
        assert connection.scalar(sa.select(Bill.total).where(Bill.id == 1)) == 31


def test_the_column_of_the_matrix_pipelines(documents: Database) -> None:
    with LockingSession(documents.engine()) as session:
        found = [type(part).__name__ for part in session._context.parts.all]
        assert ("SessionPipeline" in found) is (documents.column == PIPELINED)
