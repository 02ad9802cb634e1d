"""AsyncLockingSession.on_commit: the same, and an awaitable result is awaited."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import pytest
import sqlalchemy as sa

from sa_doclock import AsyncLockingSession, LockOptions
from tests.integration.asyncio.drivers import in_a_loop, opened, url_for
from tests.integration.on_commit.test_after_commit import Promises
from tests.support.databases import Database
from tests.support.models import Order

DRIVERS: Mapping[str, str] = {"sqlite": "aiosqlite", "postgresql": "psycopg"}

pytestmark = pytest.mark.databases(*DRIVERS)

ForUpdate = LockOptions.ForUpdate


@pytest.fixture
def url(documents: Database) -> sa.URL:
    return url_for(documents, DRIVERS[documents.name])


@pytest.fixture
def promises() -> Promises:
    return Promises()


@in_a_loop
async def test_a_coroutine_function_is_awaited_by_the_commit(url: sa.URL) -> None:
    kept: list[object] = []

    async with opened(url) as session, opened(url) as other:

        async def look() -> None:
            await asyncio.sleep(0)  # gives the loop a turn
            lock = ForUpdate | LockOptions.NoWait
            kept.append((await other.get_one_entity(Order, 1, lock)).total)
            await other.release_locks()

        (await session.get_one_entity(Order, 1, ForUpdate)).total = 31
        session.on_commit(look)
        await session.commit()
        assert kept == [31]


@in_a_loop
async def test_functions_of_both_kinds_are_called_in_order(url: sa.URL, promises: Promises) -> None:
    async def later() -> None:
        await asyncio.sleep(0)
        promises.kept.append("b")

    async def make(session: AsyncLockingSession) -> None:
        session.on_commit(promises.note("a"))
        session.on_commit(later)
        session.on_commit(promises.note("c"))

    async with opened(url) as session:
        async with session.begin():
            await make(session)
        async with session.locked(Order, 1):
            await make(session)
        await session.get_one_entity(Order, 1, ForUpdate)
        await make(session)
        await session.save_changes()
        assert promises.kept == ["a", "b", "c"] * 3


@in_a_loop
async def test_what_did_not_happen_is_dropped(url: sa.URL, promises: Promises) -> None:
    async with opened(url) as session:
        for end in (session.rollback, session.release_locks, session.close, session.reset):
            await session.get_one_entity(Order, 1, ForUpdate)
            session.on_commit(promises.note())
            await end()
            await session.commit()
        async with session.begin(), session.begin_nested() as savepoint:
            session.on_commit(promises.note())
            await savepoint.rollback()
        for end in (session.rollback, session.close, session.reset):
            session.on_commit(promises.note("before it has begun"))
            await end()
            await session.commit()
    assert promises.kept == []


@in_a_loop
async def test_an_error_comes_out_of_the_commit_which_is_done(
    url: sa.URL, promises: Promises
) -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise LookupError("no mail today")

    async with opened(url) as session:
        (await session.get_one_entity(Order, 1, ForUpdate)).total = 31
        session.on_commit(fail)
        session.on_commit(promises.note())
        with pytest.raises(LookupError, match="no mail today"):
            await session.commit()
        assert promises.kept == ["called"]
        assert (await session.get_one_entity(Order, 1, ForUpdate)).total == 31


@in_a_loop
async def test_a_cancelled_task_awaits_the_other_functions_first(
    url: sa.URL, promises: Promises
) -> None:
    waiting = asyncio.Event()

    async def wait() -> None:
        waiting.set()
        await asyncio.Event().wait()

    async def later() -> None:
        await asyncio.sleep(0)
        promises.kept.append("later")

    async with opened(url) as session:
        (await session.get_one_entity(Order, 1, ForUpdate)).total = 31
        for function in (wait, later, promises.fail(LookupError("failed")), promises.note("last")):
            session.on_commit(function)
        commit = asyncio.create_task(session.commit())
        await waiting.wait()
        commit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await commit
        assert promises.kept == ["later", "failed", "last"]
        assert (await session.get_one_entity(Order, 1, ForUpdate)).total == 31


@in_a_loop
async def test_an_interrupt_in_a_coroutine_function_stops_no_other(
    url: sa.URL, promises: Promises
) -> None:
    async def interrupt() -> None:
        await asyncio.sleep(0)
        raise KeyboardInterrupt

    async def later() -> None:
        await asyncio.sleep(0)
        promises.kept.append("later")

    async with opened(url) as session:
        for function in (promises.fail(LookupError("failed")), interrupt, later):
            session.on_commit(function)
        with pytest.raises(KeyboardInterrupt):
            await session.commit()
        await session.commit()
    assert promises.kept == ["failed", "later"]


@in_a_loop
async def test_further_errors_are_logged_with_the_functions_name(
    url: sa.URL, caplog: pytest.LogCaptureFixture
) -> None:
    async def send_the_first() -> None:
        raise LookupError("first")

    async def send_the_second() -> None:
        raise LookupError("second")

    async with opened(url) as session:
        session.on_commit(send_the_first)
        session.on_commit(send_the_second)
        with caplog.at_level(logging.ERROR, "sa_doclock"), pytest.raises(LookupError):
            await session.commit()
    (record,) = caplog.records
    assert "send_the_second" in record.getMessage()


@in_a_loop
async def test_what_cannot_be_called_is_refused_at_once(url: sa.URL) -> None:
    async with opened(url) as session:
        for wrong in (None, "print"):
            with pytest.raises(TypeError, match=r"on_commit\(\) must be a function"):
                session.on_commit(wrong)  # type: ignore[arg-type]
