"""The writes delayed until COMMIT are those that would be sent, and none that may be undone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError, InvalidRequestError, PendingRollbackError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.util import await_only

from sa_doclock import AsyncLockingSession, LockingSession, LockNotAvailable, LockOptions
from tests.integration.pipeline.conftest import Sessions
from tests.integration.pipeline.models import ON_POSTGRESQL, Bill, Note
from tests.support.databases import Database
from tests.support.poolers import skip_server_cursor

pytestmark = ON_POSTGRESQL


both = pytest.mark.parametrize("pipeline", [False, True])


def numbers(elsewhere: sa.Engine) -> list[Any]:
    with elsewhere.connect() as connection:
        return list(connection.scalars(sa.select(Note.number).order_by(Note.id)))


@both
def test_with_the_parameters_of_a_listener(
    make: Sessions, engine: sa.Engine, elsewhere: sa.Engine, pipeline: bool
) -> None:
    def one(cursor: Any, statement: str, parameters: Any, _context: Any) -> bool | None:
        if not statement.startswith("UPDATE pl_note"):
            return None
        cursor.execute(statement, {**parameters, "number": 70})
        return True

    def many(cursor: Any, statement: str, parameters: Any, _context: Any) -> bool | None:
        if not statement.startswith("UPDATE pl_note"):
            return None
        cursor.executemany(statement, [{**row, "number": 80} for row in parameters])
        return True

    event.listen(engine, "do_execute", one)
    event.listen(engine, "do_executemany", many)
    session = make(pipeline=pipeline)
    session.get_one(Note, 1).number = 7
    session.save_changes()
    assert numbers(elsewhere) == [70, 2, 3]
    for note in session.scalars(sa.select(Note)).all():
        note.number = 8
    session.save_changes()
    assert numbers(elsewhere) == [80, 80, 80]


@both
def test_with_what_a_listener_may_still_change(
    make: Sessions, engine: sa.Engine, elsewhere: sa.Engine, pipeline: bool
) -> None:
    class Number(int):
        """A type that may change its values."""

    def one(cursor: Any, statement: str, parameters: Any, _context: Any) -> bool | None:
        if not statement.startswith("UPDATE pl_note"):
            return None
        cursor.execute(statement, {**parameters, "number": Number(70)})
        assert cursor.rowcount == 1
        return True

    event.listen(engine, "do_execute", one)
    session = make(pipeline=pipeline)
    session.get_one(Note, 1).number = 7
    session.save_changes()
    assert numbers(elsewhere) == [70, 2, 3]


@both
def test_its_cursor_can_read_afterwards(
    make: Sessions, engine: sa.Engine, elsewhere: sa.Engine, pipeline: bool
) -> None:
    found = []

    def one(cursor: Any, statement: str, parameters: Any, _context: Any) -> bool | None:
        if not statement.startswith("UPDATE pl_note"):
            return None
        cursor.execute(statement, parameters)
        assert (cursor.rowcount, cursor.description) == (1, None)
        cursor.execute("SELECT number FROM pl_note WHERE id = 1")
        assert len(cursor.description) == 1
        found.append(cursor.fetchone())
        return True

    event.listen(engine, "do_execute", one)
    session = make(pipeline=pipeline)
    session.get_one(Note, 1).number = 7
    session.save_changes()
    assert found == [(7,)]
    assert numbers(elsewhere) == [7, 2, 3]


@both
def test_nothing_in_a_savepoint(make: Sessions, elsewhere: sa.Engine, pipeline: bool) -> None:
    session, refused = make(pipeline=pipeline), []

    @event.listens_for(session, "before_commit")
    def try_something(session: LockingSession) -> None:
        if session.in_nested_transaction():
            return
        savepoint = session.begin_nested()
        session.add(Note(id=3, text="again"))
        with pytest.raises(IntegrityError) as caught:
            session.flush()
        refused.append(caught.value)
        savepoint.rollback()

    session.get_one(Note, 1).number = 50
    session.commit()
    assert len(refused) == 1
    assert numbers(elsewhere) == [50, 2, 3]


@both
@pytest.mark.filterwarnings("ignore:transaction already deassociated")
def test_nothing_of_a_transaction_that_the_program_has_rolled_back(
    make: Sessions, elsewhere: sa.Engine, pipeline: bool
) -> None:
    session = make(pipeline=pipeline)

    @event.listens_for(session, "after_flush")
    def roll_back(session: LockingSession, _: object) -> None:
        connection = session.connection()
        connection.rollback()
        connection.exec_driver_sql("SELECT 1")
        connection.commit()

    session.get_one(Note, 1).number = 50
    with pytest.raises(InvalidRequestError):
        session.commit()
    session.rollback()
    assert numbers(elsewhere) == [1, 2, 3]


@both
def test_a_commit_is_refused_behind_a_lock_that_has_failed(
    make: Sessions, elsewhere: sa.Engine, pipeline: bool
) -> None:
    session = make(pipeline=pipeline)
    with elsewhere.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        connection.execute(sa.select(Bill.id).where(Bill.id == 1).with_for_update()).all()

        @event.listens_for(session, "before_commit")
        def fail(session: LockingSession) -> None:
            with pytest.raises(LockNotAvailable):
                session.get_one_entity(Bill, 1, LockOptions.ForUpdate | LockOptions.NoWait)

        session.get_one_entity(Note, 1, LockOptions.ForUpdate).number = 50
        session.flush()  # no write waits for COMMIT
        with pytest.raises(PendingRollbackError):
            session.commit()
        session.rollback()
        connection.exec_driver_sql("ROLLBACK")
    assert numbers(elsewhere) == [1, 2, 3]


# --------------------------------------------------------------------------------------------------
# COPY, stream() and server cursors outside SQLAlchemy see what the last flush wrote.

NUMBER = "SELECT number FROM pl_note WHERE id = 1"


def copy(driver: Any) -> Any:
    with driver.cursor() as cursor, cursor.copy(f"COPY ({NUMBER}) TO STDOUT") as rows:
        ((number,),) = rows.rows()
        return int(number)


def stream(driver: Any) -> Any:
    with driver.cursor() as cursor:
        ((number,),) = cursor.stream(NUMBER)
        return number


def named(driver: Any) -> Any:
    with driver.cursor(name="doclock") as cursor:
        return cursor.execute(NUMBER).fetchone()[0]


def rows_as_dict(driver: Any) -> Any:
    with driver.cursor() as cursor:
        cursor.row_factory = dict_row
        return cursor.execute(NUMBER).fetchone()["number"]


def binary(driver: Any) -> Any:
    with driver.cursor(binary=True) as cursor:
        assert cursor.execute(NUMBER).pgresult.fformat(0) == 1
        return cursor.fetchone()[0]


@pytest.mark.parametrize("pipeline", [False, True])
@pytest.mark.parametrize("read", [copy, stream, named, rows_as_dict, binary])
def test_what_the_last_flush_has_written_is_read(
    bills: Database,
    make: Sessions,
    elsewhere: sa.Engine,
    read: Callable[[Any], Any],
    pipeline: bool,
) -> None:
    if read is named:
        skip_server_cursor(bills.column)
    session, found = make(pipeline=pipeline), []

    @event.listens_for(session, "after_flush")
    def look(session: LockingSession, _: object) -> None:
        found.append(read(session.connection().connection.driver_connection))

    session.get_one(Note, 1).number = 7
    session.save_changes()
    assert found == [7]
    with elsewhere.connect() as connection:
        assert connection.exec_driver_sql(NUMBER).scalar_one() == 7


async def copy_later(driver: Any) -> Any:
    async with driver.cursor() as cursor, cursor.copy(f"COPY ({NUMBER}) TO STDOUT") as rows:
        ((number,),) = [row async for row in rows.rows()]
        return int(number)


async def stream_later(driver: Any) -> Any:
    async with driver.cursor() as cursor:
        ((number,),) = [row async for row in cursor.stream(NUMBER)]
        return number


async def named_later(driver: Any) -> Any:
    async with driver.cursor(name="doclock") as cursor:
        await cursor.execute(NUMBER)
        return (await cursor.fetchone())[0]


@pytest.mark.parametrize("pipeline", [False, True])
@pytest.mark.parametrize("read", [copy_later, stream_later, named_later])
def test_so_it_is_under_asyncio(
    bills: Database, read: Callable[[Any], Any], pipeline: bool
) -> None:
    if read is named_later:
        skip_server_cursor(bills.column)
    found: list[Any] = []

    async def main() -> None:
        engine = create_async_engine(bills.url)
        async with AsyncLockingSession(engine, pipeline=pipeline) as session:

            @event.listens_for(session.sync_session, "after_flush")
            def look(session: LockingSession, _: object) -> None:
                driver = session.connection().connection.driver_connection
                found.append(await_only(read(driver)))

            (await session.get_one(Note, 1)).number = 7
            await session.save_changes()
        await engine.dispose()

    asyncio.run(main())
    assert found == [7]
