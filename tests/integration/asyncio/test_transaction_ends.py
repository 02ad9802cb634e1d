"""Ends of a transaction under asyncio, by the session and behind its back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.ext.asyncio import AsyncConnection

from sa_doclock import (
    AsyncLockingSession,
    LockLost,
    LockMisuse,
    LockNotAvailable,
    LockOptions,
)
from tests.integration.asyncio.drivers import in_a_loop, opened
from tests.support.models import Customer, Order

ForUpdate = LockOptions.ForUpdate


def committed(url: sa.URL) -> dict[str, str]:
    """Return the options of an engine in whose open transactions a document can be locked."""
    mysql = url.get_backend_name() in {"mysql", "mariadb"}
    return {"isolation_level": "READ COMMITTED"} if mysql else {}


class UsersOwnError(Exception):
    """The error that the code inside of a block raises."""


async def half_done(session: AsyncLockingSession) -> None:
    """Change a document in a block of its own, and leave it by an exception."""
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
    """End the transaction behind the driver's back."""
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
