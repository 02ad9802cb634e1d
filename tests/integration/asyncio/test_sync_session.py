"""The session inside of an AsyncLockingSession is a LockingSession, whatever class is given."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from sa_doclock import AsyncLockingSession, LockingSession, LockMisuse, LockOptions, with_lock
from tests.integration.asyncio.drivers import connected, in_a_loop
from tests.support.models import Order

FOR_UPDATE = LockOptions.ForUpdate


class Inner(Session):
    def tenant(self) -> str:
        return "t"


async def check_lock(session: Any) -> None:
    """Assert that the session locks what it executes."""
    await session.execute(with_lock(sa.select(Order), FOR_UPDATE).where(Order.id == 1))
    assert dict(session.sync_session.held_locks) == {(Order, (1,)): FOR_UPDATE}
    await session.rollback()
    assert await session.get_entity(Order, 1, FOR_UPDATE) is not None


@in_a_loop
async def test_a_class_of_ones_own_is_taken_as_it_is(url: sa.URL) -> None:
    class Own(LockingSession):
        pass

    async with (
        connected(url) as engine,
        AsyncLockingSession(engine, sync_session_class=Own) as session,
    ):
        assert type(session.sync_session) is Own
        await check_lock(session)


@in_a_loop
async def test_a_class_without_locks_is_given_them(url: sa.URL) -> None:
    async with connected(url) as engine:
        for given in (Session, Inner):
            factory = async_sessionmaker(engine, class_=AsyncLockingSession)
            factory.configure(sync_session_class=given)
            async with factory() as session, factory() as other:
                assert isinstance(session.sync_session, given)
                assert type(session.sync_session) is type(other.sync_session)
                await check_lock(session)


@in_a_loop
async def test_a_sessionmaker_keeps_its_options_and_listeners(url: sa.URL) -> None:
    maker = sessionmaker(class_=Inner, autoflush=False, info={"a": 1, "b": 1})
    begun: list[Session] = []
    event.listen(maker, "after_begin", lambda session, *_: begun.append(session))
    async with connected(url) as engine:
        options: Any = {"sync_session_class": maker, "info": {"b": 2}}
        async with AsyncLockingSession(engine, **options) as session:
            assert isinstance(session.sync_session, Inner)
            assert session.sync_session.autoflush is False
            assert session.info == {"a": 1, "b": 2}
            await check_lock(session)
            assert begun == [session.sync_session] * 2
        own: Any = sessionmaker(class_=LockingSession)
        async with AsyncLockingSession(engine, sync_session_class=own) as session:
            assert type(session.sync_session) is own.class_


def test_what_makes_no_locking_session_is_refused_at_once() -> None:
    make: Any = lambda **_: Session()  # noqa: E731
    with pytest.raises(
        TypeError, match="sync_session_class must make a LockingSession, not <class"
    ):
        AsyncLockingSession(sync_session_class=make)

    class Late(AsyncSession):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, sync_session_class=Inner, **kwargs)

    class InFront(AsyncLockingSession, Late):
        pass

    class Behind(Late, AsyncLockingSession):
        pass

    with pytest.raises(TypeError, match="must make a LockingSession"):
        InFront()
    assert isinstance(Behind().sync_session, Inner)
    assert isinstance(Behind().sync_session, LockingSession)


@in_a_loop
async def test_the_session_classes_of_all_bases_are_joined(url: sa.URL) -> None:
    class Their(AsyncSession):
        sync_session_class: type[Session] = Inner

    class First(Their, AsyncLockingSession):
        pass

    class Last(AsyncLockingSession, Their):
        pass

    class Said(AsyncLockingSession):
        sync_session_class: type[Session] = Inner

    async with connected(url) as engine:
        for cls in (First, Last, Said):
            async with cls(engine) as session:
                assert isinstance(session.sync_session, Inner)
                await check_lock(session)


@in_a_loop
async def test_exec_of_sqlmodel_locks_in_both_orders(url: sa.URL) -> None:
    sqlmodel = pytest.importorskip("sqlmodel")
    theirs: Any = pytest.importorskip("sqlmodel.ext.asyncio.session").AsyncSession
    statement = with_lock(sqlmodel.select(Order), FOR_UPDATE).where(Order.id == 1)
    async with connected(url) as engine:
        for bases in ((theirs, AsyncLockingSession), (AsyncLockingSession, theirs)):
            cls: Any = type("AppSession", bases, {})
            async with cls(engine) as session:
                assert (await session.exec(statement)).one().id == 1
                assert dict(session.held_locks) == {(Order, (1,)): FOR_UPDATE}

    with pytest.raises(LockMisuse, match="past LockingSession"):
        type("Inside", (LockingSession, sqlmodel.Session), {})


@in_a_loop
async def test_advanced_alchemy_makes_sessions_that_lock(url: sa.URL) -> None:
    alchemy = pytest.importorskip("advanced_alchemy.config")
    async with connected(url) as engine:
        config = alchemy.SQLAlchemyAsyncConfig(
            engine_instance=engine,
            session_config=alchemy.AsyncSessionConfig(class_=AsyncLockingSession),
        )
        async with config.get_session() as session:
            assert session.sync_session.info["file_object_raise_on_error"] is True
            await check_lock(session)
