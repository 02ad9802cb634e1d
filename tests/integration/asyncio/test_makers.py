"""The ways to get an AsyncLockingSession, and to use it beside the session's own methods."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker

from sa_doclock import AsyncLockingSession, LockingSession, LockNotSupported, LockOptions, with_lock
from tests.integration.asyncio.drivers import connected, in_a_loop, opened
from tests.support.models import Customer, Order

FOR_UPDATE = LockOptions.ForUpdate


@in_a_loop
async def test_a_sessionmaker_makes_it(url: sa.URL) -> None:
    async with connected(url) as engine:
        factory = async_sessionmaker(engine, class_=AsyncLockingSession, expire_on_commit=False)
        async with factory() as session, session.locked(Order, 1) as order:
            order.total = 7
        assert order.total == 7
        async with factory.begin() as session:
            assert (await session.get_one_entity(Order, 1, FOR_UPDATE)).total == 7


@in_a_loop
async def test_a_registry_keeps_one_for_each_task(url: sa.URL) -> None:
    async with connected(url) as engine:
        factory = async_sessionmaker(engine, class_=AsyncLockingSession)
        registry = async_scoped_session(factory, scopefunc=asyncio.current_task)
        async with registry().locked(Order, 1) as order:
            order.total = 7
            assert registry().held_locks
        assert (await registry.get_one(Order, 1)).total == 7
        await registry.remove()


@in_a_loop
async def test_it_takes_a_connection_of_the_callers(url: sa.URL) -> None:
    async with connected(url) as engine, engine.connect() as connection:
        async with AsyncLockingSession(connection) as session, session.locked(Order, 1) as order:
            order.total = 7
        await connection.rollback()
        async with AsyncLockingSession(connection) as session:
            assert (await session.get_one(Order, 1)).total == 7


@in_a_loop
async def test_any_session_on_the_synchronous_one_is_guarded(url: sa.URL) -> None:
    async with (
        connected(url) as engine,
        AsyncSession(engine, sync_session_class=LockingSession) as session,
    ):
        everything = with_lock(sa.select(Order), FOR_UPDATE).order_by(Order.id)
        assert [order.id for order in await session.scalars(everything)] == [1, 2]
        assert isinstance(session.sync_session, LockingSession)
        assert len(session.sync_session.held_locks) == 2


@in_a_loop
async def test_a_locked_set_is_not_streamed(url: sa.URL) -> None:
    async with opened(url) as session:
        everything = session.entity_set(Order, FOR_UPDATE)
        with pytest.raises(LockNotSupported, match="read in one piece"):
            await session.stream(everything)
        with pytest.raises(LockNotSupported, match="read in one piece"):
            await session.stream_scalars(everything)
        assert not session.held_locks


@in_a_loop
async def test_what_is_not_locked_is_streamed(url: sa.URL) -> None:
    async with opened(url) as session:
        result = await session.stream_scalars(sa.select(Order.id).order_by(Order.id))
        assert [ident async for ident in result] == [1, 2]


@in_a_loop
async def test_a_savepoint_and_a_lock_in_it(url: sa.URL) -> None:
    async with opened(url) as session:
        await session.get_entity(Order, 1, FOR_UPDATE)
        async with session.begin_nested() as savepoint:
            await session.get_entity(Order, 2, FOR_UPDATE)
            await savepoint.rollback()
        assert set(session.held_locks) == {(Order, (1,))}
        await session.save_changes()


@in_a_loop
async def test_in_the_callers_transaction_changes_wait_for_the_caller(url: sa.URL) -> None:
    async with opened(url) as session:
        async with session.begin():
            async with session.locked(Order, 1) as order:
                order.total = 7
            await session.save_changes()
            assert session.in_transaction()
            session.add(Customer(id=3, name="Cid"))
        assert (await session.get_one(Order, 1)).total == 7
