"""Ctrl-C, or a cancelled task, while statements travel together and wait at the server."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.pq import PipelineStatus
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.util import greenlet_spawn

from sa_doclock import AsyncLockingSession, LockingSession, LockOptions
from sa_doclock.dialects.postgresql.pipeline import send_in_pipeline
from tests.integration.asyncio.drivers import in_a_loop
from tests.integration.pipeline.models import ON_POSTGRESQL, Bill, Note
from tests.support.databases import Database
from tests.support.rows import rows

pytestmark = ON_POSTGRESQL

ForUpdate = LockOptions.ForUpdate

_WAITS = sa.text("SELECT count(*) FROM pg_stat_activity WHERE :holder = ANY(pg_blocking_pids(pid))")


@contextmanager
def holding(elsewhere: sa.Engine) -> Iterator[Callable[[], bool]]:
    """Hold bill 1 and note 1; the function returns whether a session waits for them."""
    with elsewhere.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        connection.execute(sa.select(Bill).where(Bill.id == 1).with_for_update())
        connection.execute(sa.select(Note).where(Note.id == 1).with_for_update())
        holder = connection.scalar(sa.text("SELECT pg_backend_pid()"))
        with elsewhere.connect() as observer:
            yield lambda: bool(observer.scalar(_WAITS, {"holder": holder}))
        connection.exec_driver_sql("ROLLBACK")


def until(is_waited_for: Callable[[], bool]) -> None:
    while not is_waited_for():
        pass  # the server tells when


def numbers(elsewhere: sa.Engine) -> tuple[Any, ...]:
    with elsewhere.connect() as connection:
        note = connection.scalars(sa.select(Note.number).where(Note.id == 1)).one()
        return note, connection.scalars(sa.select(Bill.total).where(Bill.id == 1)).one()


def lock(session: LockingSession) -> object:
    return session.get_document(Bill, 1, ForUpdate, lock_timeout=60)


def save(session: LockingSession) -> None:
    session.save_changes()


def change(session: LockingSession) -> None:
    session.get_one(Bill, 2).total = 50
    session.get_one(Note, 1).number = 50


STEPS: dict[str, tuple[Callable[[LockingSession], object], Callable[[LockingSession], object]]] = {
    "a lock": (lambda _: None, lock),
    "a commit": (change, save),
}


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt, even if a shell started pytest in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("name", STEPS)
def test_ctrl_c(
    session: LockingSession, engine: sa.Engine, elsewhere: sa.Engine, name: str
) -> None:
    prepare, step = STEPS[name]
    prepare(session)
    with holding(elsewhere) as is_waited_for:

        def interrupt() -> None:
            until(is_waited_for)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            step(session)
        thread.join()
        session.rollback()
        assert not session.held_locks
    assert numbers(elsewhere) == (1, 30)
    with engine.connect() as connection:
        check_driver(connection)
    change(session)
    session.save_changes()
    assert numbers(elsewhere) == (50, 30)


@rows("sent", [False, True])
@in_a_loop
async def test_a_run_that_python_frees_closes_its_connection(bills: Database, sent: bool) -> None:
    """Nothing can wait for the answers any more."""
    url = sa.make_url(bills.url).set(drivername="postgresql")
    driver = await psycopg.AsyncConnection.connect(url.render_as_string(hide_password=False))
    cursor, reached = driver.cursor(), asyncio.Event()

    async def send() -> None:
        # Its answer does not arrive before the run is freed.
        await cursor.execute("SELECT pg_sleep(5)")
        reached.set()
        if not sent:
            await asyncio.get_running_loop().create_future()

    run = greenlet_spawn(send_in_pipeline, driver, [send])
    task = asyncio.create_task(run)
    await reached.wait()
    run.close()  # while it waits for the answers, with everything sent
    assert driver.closed
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("name", STEPS)
@in_a_loop
async def test_a_cancelled_task(bills: Database, elsewhere: sa.Engine, name: str) -> None:
    prepare, step = STEPS[name]
    engine = create_async_engine(bills.url, pool_size=1, max_overflow=0)
    session = AsyncLockingSession(engine, pipeline=True)
    locking = session.sync_session
    assert isinstance(locking, LockingSession)
    await session.run_sync(lambda _: prepare(locking))
    with holding(elsewhere) as is_waited_for:
        task = asyncio.create_task(session.run_sync(lambda _: step(locking)))
        await asyncio.to_thread(until, is_waited_for)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await session.rollback()
        assert not session.held_locks
    assert numbers(elsewhere) == (1, 30)
    await session.run_sync(lambda _: change(locking))
    await session.save_changes()
    assert numbers(elsewhere) == (50, 30)
    await session.close()
    async with engine.connect() as connection:
        await connection.run_sync(check_driver)
    await engine.dispose()


def check_driver(connection: sa.Connection) -> None:
    driver: Any = connection.connection.driver_connection
    assert driver.pgconn.pipeline_status == PipelineStatus.OFF
    assert driver.cursor_factory.__module__ == "psycopg"
