"""Leases and check-outs, also under asyncio: hours of work on a row, by the database's clock."""

from __future__ import annotations

import asyncio
import threading
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
    Checkout,
    CheckoutLost,
    LockingScopedSession,
    LockingSession,
    LockMisuse,
    LockOptions,
    async_lease_each,
    lease_each,
    with_lock,
)
from sa_doclock.claims.leases import heartbeat
from tests.integration.asyncio.drivers import connected, drivers_of, in_a_loop, url_for
from tests.integration.checkouts.models import CHECKOUTS, Memo, Order, expire
from tests.support.databases import Database
from tests.support.waits import wait_until

pytestmark = pytest.mark.quick


# --------------------------------------------------------------------------------------------------
# lease_each() gives each row to one worker for hours; the worker holds no lock meanwhile.

TODO = sa.select(Order).where(Order.total == 0)
SHORT = timedelta(seconds=0.6)  # the heartbeat runs after a third of it


def owners(factory: sessionmaker[LockingSession]) -> list[str]:
    with factory() as session:
        return [one.owner for one in session.checkouts()]


def found(factory: sessionmaker[LockingSession], ident: int = 1) -> Checkout | None:
    with factory() as session:
        return session.checkout_of(Order, ident)


@pytest.mark.not_databases("sqlite-journal")
def test_each_row_comes_up_once_and_nothing_is_held_meanwhile(
    factory: sessionmaker[LockingSession], engine: sa.Engine
) -> None:
    leases = lease_each(factory, TODO, owner="one", note="rendering")
    keys = []
    for lease in leases:
        with lease:
            assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
            assert sa.inspect(lease.row).detached
            assert lease.row.total == 0
            assert owners(factory) == ["one"]
            assert lease.checkout.note == "rendering"
            with factory() as other, pytest.raises(CheckedOut):
                other.get_entity(Order, lease.key, LockOptions.ForUpdate)
            with lease.saving() as row:
                row.total += 1
            keys.append(lease.key)
    assert keys == [1, 2, 3]
    assert owners(factory) == []
    assert leases.report.processed == 3
    with engine.connect() as connection:
        assert connection.scalars(sa.select(Order.total)).all() == [1, 1, 1]


@pytest.mark.not_databases("sqlite-journal")
def test_what_others_have_is_skipped(factory: sessionmaker[LockingSession]) -> None:
    first = lease_each(factory, TODO, owner="one")
    with next(first) as mine:
        second = lease_each(factory, TODO, owner="one")  # even of the same owner
        assert [lease.key for lease in second] == [2, 3]
        assert (second.report.skipped, second.report.given_back) == (1, 2)
        with factory() as session, session.begin():
            session.get_one_entity(Order, 2, LockOptions.ForUpdate).total = 7
        assert [lease.key for lease in first] == [3]
        assert first.report.no_longer_matching + first.report.skipped >= 1
        assert mine.key == 1


@pytest.mark.not_databases("sqlite-journal")
def test_a_lease_that_is_not_entered_is_given_back(factory: sessionmaker[LockingSession]) -> None:
    leases = lease_each(factory, TODO, owner="one", limit=2)
    lease = next(leases)
    assert owners(factory) == ["one"]
    assert next(leases).key == 2
    with pytest.raises(LockMisuse, match="has ended"), lease:
        pass
    leases.close()
    assert owners(factory) == []


@pytest.mark.not_databases("sqlite-journal")
def test_an_exception_frees_the_row(factory: sessionmaker[LockingSession]) -> None:
    leases = lease_each(factory, TODO, owner="one", limit=1)

    def fail() -> None:
        for lease in leases:
            with lease, lease.saving() as row:
                row.total = 9
                raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert owners(factory) == []
    assert [key for key, _ in leases.report.failed] == [1]
    with factory() as session:
        assert session.get_one(Order, 1).total == 0


@pytest.mark.not_databases("sqlite-journal")
def test_who_has_lost_the_row_cannot_save(
    factory: sessionmaker[LockingSession], engine: sa.Engine
) -> None:
    """As after a SIGSTOP longer than the lease; test_faults.py sends a real one."""
    stopped = next(lease_each(factory, TODO, owner="one", limit=1))
    with pytest.raises(CheckoutLost) as caught, stopped:  # noqa: PT012
        expire(engine)
        with next(lease_each(factory, TODO, owner="two", limit=1)) as theirs:
            assert (theirs.key, theirs.checkout.epoch) == (1, 2)
            with theirs.saving() as row:
                row.total = 2
            with stopped.saving() as row:
                row.total = 1
    assert (caught.value.expected, caught.value.found) == (1, 2)
    with factory() as session:
        assert session.get_one(Order, 1).total == 2


@pytest.mark.not_databases("sqlite-journal")
def test_the_heartbeat_renews_and_ends_with_the_block(
    factory: sessionmaker[LockingSession],
) -> None:
    first, second = (lease_each(factory, TODO, owner=name, lease=SHORT) for name in ("one", "two"))
    with next(first) as one, next(second) as two:
        before = one.checkout.until, two.checkout.until
        wait_until(lambda: one.checkout.until > before[0] + SHORT)
        wait_until(lambda: two.checkout.until > before[1] + SHORT)
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("sa_doclock leases") == 1
        assert found(factory, 2) is not None
    wait_until(lambda: heartbeat._thread is None)
    assert owners(factory) == []


@pytest.mark.not_databases("sqlite-journal")
def test_the_heartbeat_tells_that_the_row_is_lost(
    factory: sessionmaker[LockingSession],
) -> None:
    lease = next(lease_each(factory, TODO, owner="one", lease=SHORT))
    with pytest.raises(CheckoutLost), lease:  # noqa: PT012  # raised at the end of the block
        with factory.begin() as session:
            session.take_over(Order, lease.key, "the operator")
        wait_until(lambda: lease.lost)


@pytest.mark.not_databases("sqlite-journal")
def test_what_cannot_be_leased(factory: sessionmaker[LockingSession], engine: sa.Engine) -> None:
    with pytest.raises(LockMisuse, match="decorate the class"):
        lease_each(factory, sa.select(Memo), owner="one")
    with pytest.raises(LockMisuse, match="checkouts=table"):
        next(lease_each(sessionmaker(engine, class_=LockingSession), TODO, owner="one"))
    with pytest.raises(ValueError, match=r"lease_each\(\) needs a select of one mapped class"):
        lease_each(factory, sa.select(Order.id), owner="one")
    with pytest.raises(LockMisuse, match=r"lease_each\(\) adds its own lock"):
        lease_each(factory, with_lock(TODO, LockOptions.ForUpdate), owner="one")
    with pytest.raises(TypeError, match=r"lease_each\(\) needs a session factory"):
        lease_each(None, TODO, owner="one")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"lease_each\(\) needs a factory of sessions"):
        next(lease_each(sessionmaker(engine), TODO, owner="one"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the owner"):
        lease_each(factory, TODO, owner="")
    with pytest.raises(ValueError, match="lease must be between"):
        lease_each(factory, TODO, owner="one", lease=0)


@pytest.mark.not_databases("sqlite-journal")
def test_a_heartbeat_that_cannot_start_fails_the_lease_and_no_later_one(
    factory: sessionmaker[LockingSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    wait_until(lambda: heartbeat._thread is None)  # left by the test before
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        leases = lease_each(factory, TODO, owner="one", lease=SHORT)
        with pytest.raises(RuntimeError, match="new thread"), next(leases):
            pass
    assert owners(factory) == []
    assert [failed.key for failed in leases.report.failed] == [1]
    with next(lease_each(factory, TODO, owner="one", lease=SHORT)) as lease:
        before = lease.checkout.until
        wait_until(lambda: lease.checkout.until > before)


@pytest.mark.not_databases("sqlite-journal")
def test_a_row_that_was_saved_is_processed_though_it_cannot_be_checked_in(
    factory: sessionmaker[LockingSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the database is away")

    leases = lease_each(factory, TODO, owner="one", limit=1)
    with next(leases) as lease:
        with lease.saving() as row:
            row.total = 1
        monkeypatch.setattr(LockingSession, "check_in", fail)
    assert (leases.report.processed, leases.report.failed) == (1, [])


# --------------------------------------------------------------------------------------------------
# The clock is the database's, read at the question and not at the start of the transaction.


def test_a_check_out_late_in_a_transaction_begins_then(
    factory: sessionmaker[LockingSession], engine: sa.Engine
) -> None:
    with factory() as session, factory() as other:
        session.get_one(Memo, 1)  # begins the transaction
        if engine.dialect.name != "sqlite":
            earlier = other.check_out(Order, 2, "bob")
            other.commit()
            assert session.check_out(Order, 1, "ann").since > earlier.since
        mine = session.check_out(Order, 1, "ann")
        again = session.renew(mine)
        assert again.until > mine.until - timedelta(milliseconds=1)
        session.commit()


def test_times_are_in_utc_and_have_microseconds(
    factory: sessionmaker[LockingSession], engine: sa.Engine
) -> None:
    with factory() as session:
        mine = session.check_out(Order, 1, "ann", lease=timedelta(microseconds=1500))
        session.commit()
        assert mine.since.utcoffset() == timedelta(0)
        assert mine.lease == timedelta(milliseconds=2)  # rounded up
        assert mine.until - mine.since == mine.lease
        stored = session.execute(sa.select(CHECKOUTS.c.since, CHECKOUTS.c.until)).one()
        assert (stored.since, stored.until) == (mine.since, mine.until)
        session.rollback()
        if engine.dialect.name != "sqlite":  # SQLite's clock has milliseconds
            sinces = set()
            for number in range(5):
                sinces.add(session.take_over(Order, 1, f"{number}").since.microsecond % 1000)
                session.commit()
            assert sinces != {0}


# --------------------------------------------------------------------------------------------------
# Check-outs and leases in AsyncLockingSession and in scoped sessions.

Factory = async_sessionmaker[AsyncLockingSession]


@asynccontextmanager
async def renewed() -> AsyncIterator[None]:
    """Return when a task of this loop has renewed a check-out and committed."""
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


@pytest.mark.not_databases("sqlite-journal")
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


@pytest.mark.not_databases("sqlite-journal")
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


@pytest.mark.not_databases("sqlite-journal")
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


@pytest.mark.not_databases("sqlite-journal")
def test_a_scoped_session(factory: sessionmaker[LockingSession]) -> None:
    scoped = LockingScopedSession(factory)
    mine = scoped.check_out(Order, 1, "ann")
    scoped.commit()
    assert scoped.checkout_of(Order, 1) == mine
    assert scoped.checkouts() == [mine]
    scoped.check_in(scoped.renew(scoped.take_over(Order, 1, "bob")))
    scoped.remove()


@pytest.mark.not_databases("sqlite-journal")
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
