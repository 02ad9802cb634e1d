"""COPY, stream() and server cursors, past SQLAlchemy, find what the last flush has written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.util import await_only

from sa_doclock import AsyncLockingSession, LockingSession
from tests.integration.pipeline.conftest import Sessions
from tests.integration.pipeline.models import Note
from tests.integration.pipeline.only import ON_POSTGRESQL
from tests.support.databases import Database
from tests.support.poolers import skip_server_cursor

pytestmark = ON_POSTGRESQL

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
