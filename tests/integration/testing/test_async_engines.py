"""two_at_once() and async_two_at_once() on asynchronous engines made as a program makes them.

Each has a pool, and has not connected before.
"""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from sa_doclock import AsyncLockingSession, LockingSession, LockOptions
from sa_doclock.testing import async_two_at_once, two_at_once
from sa_doclock.testing.open_sessions import OpenSessions, OpenTransaction, end_session
from tests.integration.asyncio.drivers import PATIENT, drivers_of, url_for
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Order
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.read_committed


#: Drivers whose connections work only in the event loop that opened them.
OF_ONE_LOOP = {"asyncpg", "aiomysql", "asyncmy"}

NewEngines = Callable[..., list[AsyncEngine]]


@pytest.fixture
def new_engines(documents: Database, read_committed: dict[str, Any]) -> NewEngines:
    """Make an unconnected engine for each driver, with a function that accepts options."""

    def make(**options: Any) -> list[AsyncEngine]:
        options = {**PATIENT.get(documents.name, {}), **read_committed, **options}
        return [
            create_async_engine(url_for(documents, driver), **options)
            for driver in drivers_of(documents.column)
        ]

    return make


class Program:
    """Adds ten to the total of an order, and reads it without the engine."""

    def __init__(self, engine: AsyncEngine, elsewhere: Callable[..., list[Any]]) -> None:
        self.engine = engine
        self._elsewhere = elsewhere

    async def add(self) -> None:
        async with AsyncLockingSession(self.engine) as session:
            (await session.get_one_entity(Order, 1, LockOptions.ForUpdate)).total += 10
            await session.commit()

    def add_in_a_loop_of_its_own(self) -> None:
        async def add() -> None:
            await self.add()
            await self.engine.dispose()

        asyncio.run(add())

    def total(self) -> int:
        ((total,),) = self._elsewhere(sa.select(Order.total).where(Order.id == 1))
        return int(total)


@pytest.fixture
def programs(
    new_engines: NewEngines, elsewhere: Callable[..., list[Any]], start_over: Callable[[], None]
) -> Callable[..., Iterator[Program]]:
    """Return a maker of programs, one for each driver, each with the same rows."""

    def make(**options: Any) -> Iterator[Program]:
        for engine in new_engines(**options):
            start_over()
            yield Program(engine, elsewhere)

    return make


@contextmanager
def collected() -> Iterator[None]:
    """Silently collect the connections that can no longer be closed, at the end."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def test_coroutine_functions_again_and_again(programs: Callable[..., Iterator[Program]]) -> None:
    for program in programs():
        for count in (1, 2, 3):
            outcomes = two_at_once(program.add, program.add)
            assert [one.error for one in outcomes] == [None, None]
            assert program.total() == 30 + count * 20


def test_the_engine_can_be_used_in_the_next_event_loop(
    programs: Callable[..., Iterator[Program]],
) -> None:
    for program in programs():
        two_at_once(program.add, program.add)
        program.add_in_a_loop_of_its_own()
        assert program.total() == 60


def test_functions_with_an_event_loop_each(programs: Callable[..., Iterator[Program]]) -> None:
    for program in programs(poolclass=NullPool):
        for _ in range(3):
            add = program.add_in_a_loop_of_its_own
            outcomes = two_at_once(add, add, timeout=30)
            assert [one.error for one in outcomes] == [None, None]
        assert program.total() == 90


def test_in_the_event_loop_of_the_test(programs: Callable[..., Iterator[Program]]) -> None:
    async def test(program: Program) -> None:
        await program.add()  # the pool has a connection of this loop
        for _ in range(2):
            outcomes = await async_two_at_once(program.add, program.add)
            assert [one.error for one in outcomes] == [None, None]
        await program.add()
        await program.engine.dispose()

    for program in programs():
        asyncio.run(test(program))
        assert program.total() == 90


@pytest.mark.parametrize("pre_ping", [False, True])
def test_a_connection_of_another_event_loop(
    programs: Callable[..., Iterator[Program]],
    documents: Database,
    caplog: pytest.LogCaptureFixture,
    *,
    pre_ping: bool,
) -> None:
    drivers = drivers_of(documents.column)
    for driver, program in zip(drivers, programs(pool_pre_ping=pre_ping), strict=True):
        with closing(asyncio.new_event_loop()) as loop, collected():
            loop.run_until_complete(program.add())  # leaves a connection in the pool
            first, _ = two_at_once(program.add, lambda: None)
            loop.run_until_complete(program.engine.dispose())
        if driver in OF_ONE_LOOP:
            assert "had a connection of another event loop" in str(first.error)
            assert "await engine.dispose()" in str(first.error)
            assert isinstance(first.error, RuntimeError)
            assert isinstance(first.error.__cause__, RuntimeError)
        else:
            assert first.error is None
    caplog.clear()  # of the pool's messages about connections that it cannot close


def test_an_error_of_the_program_stays_as_it_is(
    programs: Callable[..., Iterator[Program]],
) -> None:
    async def fails(program: Program) -> None:
        await program.add()
        raise RuntimeError("of the program")

    for program in programs():
        first, _ = two_at_once(partial(fails, program), lambda: None)
        assert str(first.error) == "of the program"


@pytest.mark.databases("sqlite")
def test_what_does_not_end_in_the_event_loop_of_the_test() -> None:
    ended: list[str] = []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("hang")

    async def test() -> None:
        with pytest.raises(TimeoutError, match=r"the first .*has not ended"):
            await async_two_at_once(hang, lambda: None, timeout=0.05)
        await asyncio.sleep(0)

    asyncio.run(test())
    assert ended == ["hang"]


def test_a_connection_that_fails_lets_the_other_function_connect(
    new_engines: NewEngines,
) -> None:
    """The engine's first connection is refused; the other function waits for its end."""
    for engine in new_engines(poolclass=NullPool):
        refused: list[str] = []

        @sa.event.listens_for(engine.sync_engine, "do_connect")
        def refuse(*_: object, refused: list[str] = refused) -> None:
            if not refused:
                refused.append("once")
                raise ConnectionRefusedError

        async def connect(engine: AsyncEngine = engine) -> int:
            async with engine.connect() as connection:
                return int((await connection.execute(sa.text("SELECT 1"))).scalar_one())

        def in_a_loop_of_its_own(connect: Callable[[], Coroutine[Any, Any, int]] = connect) -> int:
            return asyncio.run(connect())

        outcomes = two_at_once(in_a_loop_of_its_own, in_a_loop_of_its_own, timeout=30)
        assert sorted(str(one.error or one.value) for one in outcomes) == ["", "1"]


# --------------------------------------------------------------------------------------------------
# Sessions that a test left open are closed from another thread, after their event loop ended.
#
# tests/unit/test_pytest_plugin_leaks.py tests the option ``--doclock-leaks``.

__all__ = ["new_engines"]
Lock = Callable[[], None]


@pytest.fixture
def open_sessions() -> Iterator[OpenSessions]:
    found = OpenSessions(lambda: None)
    found.listen()
    yield found
    found.forget()


@pytest.fixture
def lock(enter: Callable[[str], Actor[LockingSession]]) -> Lock:
    """Lock the order in another session, which waits until it is free."""
    other = enter("other")

    def lock() -> None:
        other.does(lambda session: session.get_one_entity(Order, 1, LockOptions.ForUpdate))
        other.does(lambda session: session.rollback())

    return lock


def the_open_one(open_sessions: OpenSessions) -> tuple[Session, OpenTransaction]:
    (found,) = open_sessions.found()
    return found


@pytest.mark.parametrize("loop_closed", [True, False])
def test_of_asyncio(
    new_engines: NewEngines,
    open_sessions: OpenSessions,
    lock: Lock,
    caplog: pytest.LogCaptureFixture,
    *,
    loop_closed: bool,
) -> None:
    for engine in new_engines(pool_size=1, max_overflow=0):
        loop = asyncio.new_event_loop()
        with collected():
            left = AsyncLockingSession(engine)
            loop.run_until_complete(left.get_one_entity(Order, 1, LockOptions.ForUpdate))
            if loop_closed:
                loop.close()
            found = the_open_one(open_sessions)
            assert found[1].held
            assert end_session(*found) is None
            assert open_sessions.found() == []
            lock()
            assert engine.pool.status().endswith("Current Checked out connections: 0")
            if not loop_closed:
                loop.run_until_complete(engine.dispose())
                loop.close()
    caplog.clear()  # of the pool's messages about connections that it cannot close


def test_of_a_thread_that_waits_for_another(
    open_sessions: OpenSessions,
    alice: Actor[LockingSession],
    bob: Actor[LockingSession],
    lock: Lock,
) -> None:
    order = Order, 1, LockOptions.ForUpdate
    alice.does(lambda session: session.get_one_entity(*order))
    step = bob.starts(lambda session: session.get_one_entity(*order))
    wait_until_blocked(waiter=bob, holder=alice, step=step)
    sessions = open_sessions.found()
    assert [bool(transaction.held) for _, transaction in sessions] == [True, False]
    assert [end_session(*one) for one in sessions] == [None, None]
    assert step.result() is not None  # it had its turn
    assert open_sessions.found() == []
    lock()


def test_of_a_thread_that_waits_for_another_program(
    open_sessions: OpenSessions,
    alice: Actor[LockingSession],
    bob: Actor[LockingSession],
    documents: Database,
) -> None:
    order = Order, 1, LockOptions.ForUpdate
    alice.does(lambda session: session.get_one_entity(*order))
    step = bob.starts(lambda session: session.get_one_entity(*order))
    wait_until_blocked(waiter=bob, holder=alice, step=step)
    _, waiting = open_sessions.found()
    error = end_session(*waiting)
    if documents.name == "sqlite":  # no server can be left
        assert str(error) == "thread bob is in the middle of a call"
    else:
        assert error is None
        assert isinstance(step.exception(), DBAPIError)
    alice.does(lambda session: session.rollback())
    if documents.name == "sqlite":
        step.result()
        bob.does(lambda session: session.rollback())
    assert open_sessions.found() == []
