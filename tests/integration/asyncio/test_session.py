"""AsyncLockingSession: its factories and scopes, its signatures, and the session inside."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from sa_doclock import (
    AsyncLockingScopedSession,
    AsyncLockingSession,
    LockingSession,
    LockMisuse,
    LockNotSupported,
    LockOptions,
    with_lock,
)
from tests.integration.asyncio.drivers import connected, in_a_loop, opened
from tests.support.models import Customer, Order
from tests.support.rows import rows

# --------------------------------------------------------------------------------------------------
# The session inside an AsyncLockingSession is a LockingSession, whichever class is passed.

FOR_UPDATE = LockOptions.ForUpdate


class Inner(Session):
    def tenant(self) -> str:
        return "t"


async def check_lock(session: Any) -> None:
    """Assert that the session's statements lock."""
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

    with pytest.raises(LockMisuse, match="without the locks and the guard of LockingSession"):
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


# --------------------------------------------------------------------------------------------------
# Ways to create an AsyncLockingSession, and to use it with the session's own methods.


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


# --------------------------------------------------------------------------------------------------
# An AsyncLockingScopedSession gives each task its own session and locks.

NO_WAIT = LockOptions.ForUpdate | LockOptions.NoWait
Scoped = AsyncLockingScopedSession[AsyncLockingSession]


@in_a_loop
async def test_each_task_has_its_own_locks_and_one_waits_for_the_other(url: sa.URL) -> None:
    async with connected(url) as engine:
        scoped = AsyncLockingScopedSession(
            async_sessionmaker(engine, class_=AsyncLockingSession), asyncio.current_task
        )

        async def add_one() -> None:
            async with scoped.locked(Order, 1) as order:
                assert dict(scoped.held_locks) == {(Order, (1,)): FOR_UPDATE}
                await asyncio.sleep(0)  # lets the other task run until it waits
                order.total += 1
            await scoped.remove()

        await asyncio.gather(*(add_one() for _ in range(4)))
        assert (await scoped.get_one(Order, 1)).total == 34
        await scoped.remove()
        assert not scoped.registry.registry


@in_a_loop
async def test_every_method_is_that_of_the_session(url: sa.URL) -> None:
    async with connected(url) as engine:
        scoped = AsyncLockingScopedSession(
            async_sessionmaker(engine, class_=AsyncLockingSession), asyncio.current_task
        )
        events: list[str] = []
        order = await scoped.get_one_entity(Order, 1)
        assert not scoped.held_locks
        await scoped.rollback()
        assert await scoped.lock(order, FOR_UPDATE) is order
        assert await scoped.get_entity(Order, 1, FOR_UPDATE) is order
        found = await scoped.get_entities(Order, [2, 1], order="given")
        assert [one.id for one in found] == [2, 1]
        await scoped.release_locks()
        async with scoped.locked_document(Order, 1) as order:
            assert "lines" in vars(order)
            assert await scoped.get_document(Order, 1) is await scoped.get_one_document(Order, 1)
            scoped.on_commit(lambda: events.append("committed"))
        assert events == ["committed"]
        async with scoped.locked_documents(Order, [2, 1]) as (two, one):
            assert [one, two] == await scoped.get_documents(Order, [1, 2])
        await scoped.scalars(scoped.entity_set(Order, FOR_UPDATE))
        assert set(scoped.held_locks) == {(Order, (1,)), (Order, (2,))}
        async with scoped.unguarded():
            one.total = 7
        await scoped.lock_key("prices")
        await scoped.save_changes()
        assert not scoped.held_locks
        assert await scoped.scalar(sa.select(Order.total).where(Order.id == 1)) == 7
        await scoped.remove()


# --------------------------------------------------------------------------------------------------
# AsyncLockingSession awaits the methods of LockingSession, with the same arguments.

SYNC_THERE_TOO = {"entity_set", "held_locks", "on_commit"}
BLOCKS = {
    "locked": (object, 1),
    "locked_document": (object, 1),
    "locked_documents": (object, [1]),
    "unguarded": (),
}


def _own(kind: type[Any], base: type[Any]) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")} - set(dir(base))


METHODS = sorted(_own(LockingSession, Session))


def test_the_names_are_the_same() -> None:
    assert _own(AsyncLockingSession, AsyncSession) == set(METHODS)


def _member(kind: type[Any], name: str) -> Any:
    return inspect.getattr_static(kind, name)


@rows("name", METHODS)
def test_the_arguments_are_the_same(name: str) -> None:
    ours, theirs = _member(AsyncLockingSession, name), _member(LockingSession, name)
    assert isinstance(ours, property) is isinstance(theirs, property)
    if isinstance(ours, property):
        ours, theirs = ours.fget, theirs.fget
    ours, theirs = inspect.signature(ours), inspect.signature(theirs)
    if name == "on_commit":  # the asynchronous session also accepts a coroutine function
        assert ours.parameters.keys() == theirs.parameters.keys()
        return
    assert ours.parameters == theirs.parameters
    if name not in BLOCKS:
        assert ours.return_annotation == theirs.return_annotation


@rows("name", METHODS)
def test_it_is_awaited_unless_it_only_makes_a_statement(name: str) -> None:
    member = _member(AsyncLockingSession, name)
    if name in BLOCKS:
        block = getattr(AsyncLockingSession(), name)(*BLOCKS[name])
        assert isinstance(block, AbstractAsyncContextManager)
    else:
        assert inspect.iscoroutinefunction(member) is (name not in SYNC_THERE_TOO)


@rows("name", METHODS)
def test_it_is_documented_and_leads_to_the_synchronous_one(name: str) -> None:
    reported = inspect.getdoc(_member(AsyncLockingSession, name)) or ""
    documented = inspect.getdoc(_member(LockingSession, name))
    assert f"LockingSession.{name}" in reported
    assert documented
    paragraphs = [one for one in documented.split("\n\n") if not one.startswith("    ")]  # no code
    assert not [one for one in paragraphs if one not in reported]


def test_a_subclass_of_the_synchronous_session_is_asked() -> None:
    class Own(LockingSession):
        def get_entities(self, *args: Any, **kwargs: Any) -> list[Any]:
            return [args, kwargs]

        @contextmanager
        def unguarded(self) -> Iterator[None]:
            self.info["unguarded"] = True
            yield

    class AsyncOwn(AsyncLockingSession):
        sync_session_class = Own

    async def call() -> list[Any]:
        async with AsyncOwn() as session, session.unguarded():
            return [*await session.get_entities(object, [1]), session.sync_session.info]

    assert asyncio.run(call()) == [(object, [1]), {}, {"unguarded": True}]
