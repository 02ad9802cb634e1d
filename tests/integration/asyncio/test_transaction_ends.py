"""Ends of a transaction under asyncio: by the session, and without its knowledge."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    async_sessionmaker,
    create_async_engine,
)

from sa_doclock import (
    AsyncLockingScopedSession,
    AsyncLockingSession,
    LockLost,
    LockMisuse,
    LockNotAvailable,
    LockOptions,
)
from sa_doclock.asyncio import AsyncLockingSession as EndWithoutEventAsyncLockingSession
from tests.integration.asyncio.drivers import connected, in_a_loop, opened
from tests.integration.locking.connections import DEFAULTS, LIMITS, LONG, Clock, known
from tests.support.databases import Database
from tests.support.models import Customer, Order

pytestmark = pytest.mark.each_value

ForUpdate = LockOptions.ForUpdate


def committed(url: sa.URL) -> dict[str, str]:
    """Return options for an engine whose open transactions can lock a document."""
    mysql = url.get_backend_name() in {"mysql", "mariadb"}
    return {"isolation_level": "READ COMMITTED"} if mysql else {}


class UsersOwnError(Exception):
    """The error raised inside a block."""


async def half_done(session: AsyncLockingSession) -> None:
    """Change a document in a block, and leave the block by an exception."""
    async with session.locked(Order, 2) as order:
        order.total = 6
        await session.flush()
        raise UsersOwnError


@in_a_loop
async def test_a_savepoint_first(url: sa.URL) -> None:
    async with opened(url, **committed(url)) as session:
        async with session.begin_nested():
            session.add(Customer(id=9, name="tag"))
        async with session.locked(Order, 1) as order:
            order.total = 31
        assert not session.in_transaction()


@in_a_loop
async def test_an_inner_block_that_fails(url: sa.URL) -> None:
    async def run(session: AsyncLockingSession) -> None:
        async with session.locked(Order, 1) as order:
            order.total = 31
            with pytest.raises(UsersOwnError):
                await half_done(session)

    async with opened(url) as session:
        with pytest.raises(PendingRollbackError):
            await run(session)
        assert not session.in_transaction()
        assert (await session.get_one(Order, 1)).total == 30


ENDS: dict[str, Callable[[AsyncConnection], Awaitable[object]]] = {
    "commit": lambda connection: connection.commit(),
    "rollback": lambda connection: connection.rollback(),
    "text": lambda connection: connection.execute(sa.text("COMMIT")),
}


LOCKS: dict[str, Callable[[AsyncLockingSession], Awaitable[object]]] = {
    "row": lambda session: session.get_one_entity(Order, 2, ForUpdate | LockOptions.NoWait),
    "with_for_update": lambda session: session.get_one(Order, 2, with_for_update={"nowait": True}),
    "name": lambda session: session.lock_key("a name", lock_timeout=0),
}


async def rolled_back_by_text(connection: AsyncConnection) -> None:
    """End the transaction without the driver's knowledge."""
    await connection.execute(sa.text("ROLLBACK"))


@pytest.mark.filterwarnings("ignore:.*already deassociated:sqlalchemy.exc.SAWarning")
@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("end", [*ENDS, "rolled back by text"])
@in_a_loop
async def test_a_lock_that_follows_is_held_or_refused(url: sa.URL, end: str, lock: str) -> None:
    take = LOCKS[lock]
    async with opened(url, **committed(url)) as session, opened(url) as other:
        await session.execute(sa.update(Customer).values(name=Customer.name))
        await ENDS.get(end, rolled_back_by_text)(await session.connection())
        if url.get_driver_name() == "asyncpg" and "text" in end:
            with pytest.raises(LockMisuse, match="ended with its statement"):
                await take(session)
            assert not session.held_locks
            await session.rollback()
        await take(session)
        with pytest.raises(LockNotAvailable):
            await take(other)
        await session.rollback()
        await other.rollback()
        await take(other)


@pytest.mark.filterwarnings("ignore:.*already deassociated:sqlalchemy.exc.SAWarning")
@pytest.mark.parametrize("end", ENDS)
@in_a_loop
async def test_the_program_ends_it_on_the_connection(url: sa.URL, end: str) -> None:
    async with opened(url) as session:
        order = await session.get_one_entity(Order, 1, ForUpdate)
        await ENDS[end](await session.connection())
        assert not session.held_locks
        order.total = 31
        with pytest.raises(LockLost):
            await session.save_changes()
        await session.rollback()
        assert (await session.get_one(Order, 1)).total == 30


@in_a_loop
async def test_an_error_in_a_savepoint_of_the_connection(url: sa.URL) -> None:
    async with opened(url) as session:
        async with session.locked(Order, 1) as order:
            connection = await session.connection()
            with pytest.raises(DBAPIError):
                async with connection.begin_nested():
                    await connection.execute(sa.insert(Customer).values(id=1, name="twice"))
            assert list(session.held_locks) == [(Order, (1,))]
            order.total = 31
        assert (await session.get_one(Order, 1)).total == 31


@pytest.mark.databases("sqlite")
@in_a_loop
async def test_sqlite_rolls_back_by_itself(url: sa.URL) -> None:
    conflict = sa.text("INSERT OR ROLLBACK INTO lk_customer (id, name) VALUES (1, 'x')")
    async with opened(url) as session:
        await session.get_one_entity(Order, 1, ForUpdate)
        with pytest.raises(DBAPIError):
            async with session.begin_nested():
                await session.execute(conflict)
        assert not session.held_locks
        with pytest.raises(PendingRollbackError):
            await session.commit()
        await session.rollback()


@pytest.mark.databases("mysql", "mariadb")
@in_a_loop
async def test_an_implicit_commit(url: sa.URL) -> None:
    async with opened(url) as session:
        order = await session.get_one_entity(Order, 1, ForUpdate)
        await session.execute(sa.text("CREATE TEMPORARY TABLE lk_aside (id INT)"))
        assert list(session.held_locks) == [(Order, (1,))]
        await session.execute(sa.text("ALTER TABLE lk_customer COMMENT 'altered'"))
        assert not session.held_locks
        order.total = 31
        with pytest.raises(LockLost):
            await session.save_changes()
        await session.rollback()
        await session.get_one_entity(Order, 1, ForUpdate)
        with pytest.raises(DBAPIError):
            await session.execute(sa.text("DROP TABLE lk_missing"))
        assert not session.held_locks
        with pytest.raises(PendingRollbackError):
            await session.commit()
        await session.rollback()


# --------------------------------------------------------------------------------------------------
# Under asyncio, Ctrl-C arrives between the end of a transaction and SQLAlchemy's event.

NoWait = LockOptions.NoWait

# SQLAlchemy's pool logs and raises the interruption of a reset.


def interrupt_next_reset(engine: AsyncEngine) -> None:
    def interrupt(*_: object) -> None:
        event.remove(engine.sync_engine, "reset", interrupt)
        raise asyncio.CancelledError

    event.listen(engine.sync_engine, "reset", interrupt)


USES: dict[str, Callable[[EndWithoutEventAsyncLockingSession], object]] = {
    "held_locks": lambda session: session.held_locks,
    "on_commit": lambda session: session.on_commit(lambda: None),
    "add": lambda session: session.add(Customer(id=77, name="new")),
    "get_entity": lambda session: session.get_entity(Order, 2, ForUpdate),
}


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")
@pytest.mark.parametrize("use", USES)
def test_the_next_use_does_not_fail_and_the_functions_are_called(url: sa.URL, use: str) -> None:
    called: list[str] = []

    async def committed() -> None:
        await asyncio.sleep(0)
        called.append("committed")

    async def run() -> None:
        engine = create_async_engine(url)
        async with EndWithoutEventAsyncLockingSession(engine) as session:
            await session.get_one_entity(Order, 1, ForUpdate)
            session.on_commit(committed)
            interrupt_next_reset(engine)
            with pytest.raises(asyncio.CancelledError):
                await session.commit()
            used = USES[use](session)
            if use == "get_entity":
                await used  # type: ignore[misc]
            elif use == "held_locks":
                assert used == {}
            await session.get_one_entity(Order, 2, ForUpdate)
            assert session.held_locks == {(Order, (2,)): ForUpdate}
            session.on_commit(lambda: called.append("rolled back"))
            await session.rollback()
        assert engine.sync_engine.pool.checkedout() == 0  # type: ignore[attr-defined]
        await engine.dispose()

    asyncio.run(run())
    assert called == ["committed"]


# --------------------------------------------------------------------------------------------------
# hold_limit and warn_held_after under asyncio, with each driver.

Session = AsyncLockingSession


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


USES_HOLD_LIMIT: dict[str, Callable[[Session], Awaitable[object]]] = {
    "statement": lambda session: session.scalar(sa.text("SELECT 1")),
    "lock": lambda session: session.get_one_entity(Order, 2, ForUpdate),
    "flush": lambda session: session.flush(),
    "commit": lambda session: session.commit(),
}


@pytest.mark.parametrize("use", USES_HOLD_LIMIT)
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
                await USES_HOLD_LIMIT[use](session)
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
