"""hold_limit and warn_held_after under asyncio, with each driver."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import async_sessionmaker

from sa_doclock import AsyncLockingScopedSession, AsyncLockingSession, LockLost, LockOptions
from tests.integration.asyncio.drivers import connected, in_a_loop
from tests.integration.locking.hold_limits import DEFAULTS, LIMITS, LONG, Clock, known
from tests.support.databases import Database
from tests.support.models import Order

ForUpdate = LockOptions.ForUpdate
Session = AsyncLockingSession


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


USES: dict[str, Callable[[Session], Awaitable[object]]] = {
    "statement": lambda session: session.scalar(sa.text("SELECT 1")),
    "lock": lambda session: session.get_one_entity(Order, 2, ForUpdate),
    "flush": lambda session: session.flush(),
    "commit": lambda session: session.commit(),
}


@pytest.mark.parametrize("use", USES)
@in_a_loop
async def test_the_next_use_ends_it(url: sa.URL, clock: Clock, use: str) -> None:
    async with connected(url) as engine:
        make = async_sessionmaker(engine, class_=Session, hold_limit=LONG)
        async with make() as session, make() as other:
            order = await session.get_one_entity(Order, 1, ForUpdate)
            order.total = 31
            clock.put_forward()
            assert not session.held_locks
            with pytest.raises(LockLost, match="past the hold_limit"):
                await USES[use](session)
            async with other.locked(Order, 1, lock_timeout=0) as order:
                assert order.total == 30
            await session.rollback()
            async with session.locked(Order, 1) as order:
                order.total = 32
            assert (await session.get_one(Order, 1)).total == 32


@in_a_loop
async def test_a_rollback_meets_no_error(url: sa.URL, clock: Clock) -> None:
    async with connected(url) as engine, Session(engine, hold_limit=LONG) as session:
        for end in (session.rollback, session.close):
            await session.get_one_entity(Order, 1, ForUpdate)
            clock.put_forward()
            await end()


async def limits_of(session: Session, database: Database) -> tuple[object, ...]:
    limits = (await session.execute(sa.text(LIMITS[database.name]))).one()
    return known(limits, session.get_bind().dialect)


@pytest.mark.databases(*LIMITS)
@in_a_loop
async def test_the_server_limits_it_and_forgets_it(url: sa.URL, documents: Database) -> None:
    async with connected(url, pool_size=1, max_overflow=0) as engine:
        async with Session(engine, hold_limit=LONG) as session:
            await session.get_one_entity(Order, 1, ForUpdate)
            assert (await limits_of(session, documents))[0] in (LONG, "10min")
            await session.commit()
        async with Session(engine) as session:
            assert await limits_of(session, documents) == DEFAULTS[documents.name]


@pytest.mark.databases("postgresql")
@in_a_loop
async def test_the_servers_own_limit(url: sa.URL) -> None:
    async with connected(url) as engine, Session(engine) as session, Session(engine) as other:
        await session.get_one_entity(Order, 1, ForUpdate)
        limit = sa.text("SET LOCAL idle_in_transaction_session_timeout = '100ms'")
        await session.execute(limit)
        await other.get_one_entity(Order, 1, ForUpdate, lock_timeout=30)
        with pytest.raises(LockLost) as caught:
            await session.scalar(sa.text("SELECT 1"))
        assert caught.value.ident == 1
        await session.rollback()


@in_a_loop
async def test_a_scoped_session_warns(url: sa.URL, caplog: pytest.LogCaptureFixture) -> None:
    async with connected(url) as engine:
        make = async_sessionmaker(engine, class_=Session, warn_held_after=0)
        scoped = AsyncLockingScopedSession(make, asyncio.current_task)
        with caplog.at_level(logging.WARNING, "sa_doclock"):
            await scoped.get_one_entity(Order, 1, ForUpdate)
            await scoped.commit()
        await scoped.remove()
    released = [one for one in caplog.records if vars(one)["outcome"] == "committed"]
    assert [vars(one)["document"] for one in released] == ["Order 1"]
    assert __file__ in vars(released[0])["line"]
