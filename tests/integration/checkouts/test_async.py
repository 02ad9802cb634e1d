"""Check-outs and leases of AsyncLockingSession, and of the scoped sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import sessionmaker

from sa_doclock import (
    AsyncLockingScopedSession,
    AsyncLockingSession,
    CheckedOut,
    CheckoutLost,
    LockingScopedSession,
    LockingSession,
    async_lease_each,
)
from tests.integration.asyncio.drivers import connected, drivers_of, in_a_loop, url_for
from tests.integration.checkouts.models import CHECKOUTS, Order
from tests.support.databases import Database

pytestmark = pytest.mark.not_databases("sqlite-journal")
Factory = async_sessionmaker[AsyncLockingSession]
TODO = sa.select(Order).where(Order.total == 0)
SHORT = timedelta(seconds=0.6)


@asynccontextmanager
async def renewed() -> AsyncIterator[None]:
    """Return when a task of this loop has renewed a check-out, and has committed it."""
    done = asyncio.Event()

    def note(session: LockingSession, _checkout: object, change: str) -> None:
        if change == "renewed":
            sa.event.listen(session, "after_commit", lambda _: done.set(), once=True)

    sa.event.listen(LockingSession, "checkout_changed", note)
    try:
        yield
        await done.wait()
    finally:
        sa.event.remove(LockingSession, "checkout_changed", note)


@asynccontextmanager
async def sessions(database: Database, driver: str) -> AsyncIterator[Factory]:
    innodb = database.name in ("mysql", "mariadb")
    options = {"isolation_level": "READ COMMITTED"} if innodb else {}
    async with connected(url_for(database, driver), **options) as engine:
        yield async_sessionmaker(engine, class_=AsyncLockingSession, checkouts=CHECKOUTS)


@pytest.mark.usefixtures("engine")
@in_a_loop
async def test_the_methods_of_a_session(database: Database) -> None:
    for driver in drivers_of(database.column):
        async with sessions(database, driver) as make, make() as session, make() as other:
            mine = await session.check_out(Order, 1, "ann", note=driver)
            await session.commit()
            with pytest.raises(CheckedOut):
                await other.check_out(Order, 1, "bob")
            async with session.locked(Order, 1, checkout=mine) as order:
                order.total += 1
            mine = await session.renew(mine)
            await session.commit()
            assert await other.checkout_of(Order, 1) == mine
            assert await other.checkouts(owner="ann") == [mine]
            await other.rollback()
            theirs = await other.take_over(Order, 1, "bob")
            await other.commit()
            with pytest.raises(CheckoutLost):
                await session.renew(mine)
            await other.check_in(theirs)
            await other.commit()


@pytest.mark.usefixtures("engine")
@in_a_loop
async def test_leases(database: Database) -> None:
    driver = drivers_of(database.column)[0]
    async with sessions(database, driver) as make:
        leases = async_lease_each(make, TODO, owner="one", lease=SHORT)
        keys = []
        async for lease in leases:
            async with lease:
                async with renewed():
                    pass
                async with lease.saving() as row:
                    row.total += 1
                keys.append(lease.key)
        assert keys == [1, 2, 3]
        assert leases.report.processed == 3
        async with make() as session:
            assert await session.checkouts(expired=True) == []
            assert (await session.scalars(sa.select(Order.total))).all() == [1, 1, 1]


@pytest.mark.usefixtures("engine")
@in_a_loop
async def test_a_cancelled_block_frees_the_row(database: Database) -> None:
    async with sessions(database, drivers_of(database.column)[0]) as make:
        entered = asyncio.Event()

        async def work() -> None:
            async for lease in async_lease_each(make, TODO, owner="one"):
                async with lease:
                    entered.set()
                    await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with make() as session:
            assert await session.checkouts() == []
        names = {one.get_name() for one in asyncio.all_tasks()}
        while "sa_doclock leases" in names:  # it ends by itself
            await asyncio.sleep(0)
            names = {one.get_name() for one in asyncio.all_tasks()}


def test_a_scoped_session(factory: sessionmaker[LockingSession]) -> None:
    scoped = LockingScopedSession(factory)
    mine = scoped.check_out(Order, 1, "ann")
    scoped.commit()
    assert scoped.checkout_of(Order, 1) == mine
    assert scoped.checkouts() == [mine]
    scoped.check_in(scoped.renew(scoped.take_over(Order, 1, "bob")))
    scoped.remove()


@pytest.mark.databases("sqlite")
@pytest.mark.usefixtures("engine")
@in_a_loop
async def test_a_scoped_session_of_asyncio(database: Database) -> None:
    async with sessions(database, "aiosqlite") as make:
        scoped = AsyncLockingScopedSession(make, asyncio.current_task)
        mine = await scoped.check_out(Order, 1, "ann")
        assert await scoped.checkout_of(Order, 1) == mine
        assert await scoped.checkouts() == [mine]
        await scoped.check_in(await scoped.renew(await scoped.take_over(Order, 1, "bob")))
        await scoped.remove()
