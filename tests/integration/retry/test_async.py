"""async_run_transaction does the same as run_transaction, on every asynchronous driver."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError, PendingRollbackError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from sa_doclock import (
    AsyncLockingSession,
    DeadlockDetected,
    LockMisuse,
    LockOptions,
    async_run_transaction,
    run_transaction,
)
from tests.integration.asyncio.drivers import connected, in_a_loop
from tests.integration.retry.conftest import look_for_deadlocks_at_once
from tests.integration.retry.counting import deadlocks
from tests.support.models import Customer, Order

NO_WAIT = LockOptions.NoWait


Session = AsyncLockingSession
Factory = async_sessionmaker[AsyncLockingSession]
Act = Callable[[Session], Awaitable[Any]]

NAME = sa.select(Customer.name).where(Customer.id == 1)


class Counted:
    """A coroutine function that raises these errors, one per run, then returns its run count."""

    def __init__(self, *errors: BaseException, act: Act | None = None) -> None:
        self.errors, self.act, self.runs = list(errors), act, 0

    async def __call__(self, session: Session) -> int:
        self.runs += 1
        if self.act is not None:
            await self.act(session)
        if self.errors:
            raise self.errors.pop(0)
        return self.runs


def maker(engine: AsyncEngine) -> Factory:
    return async_sessionmaker(engine, class_=AsyncLockingSession)


def in_use(engine: AsyncEngine) -> int:
    count: int = engine.pool.checkedout()  # type: ignore[attr-defined]
    return count


async def name_in(engine: AsyncEngine) -> str:
    async with engine.connect() as connection:
        return str((await connection.execute(NAME)).scalar_one())


async def rename(session: Session, name: str) -> None:
    (await session.get_one(Customer, 1)).name = name
    await session.flush()


@in_a_loop
async def test_it_is_opened_committed_and_run_until_it_works(url: sa.URL) -> None:
    async def act(session: Session) -> None:
        order = await session.get_one_entity(Order, 1, LockOptions.ForUpdate)
        order.total += 1
        await session.save_changes()
        assert session.in_transaction()
        assert session.held_locks

    async with connected(url) as engine:
        fn = Counted(*deadlocks(2), act=act)
        assert await async_run_transaction(maker(engine), fn, backoff=0) == 3
        assert in_use(engine) == 0
        async with maker(engine)() as session:
            assert (await session.get_one(Order, 1)).total == 31


@in_a_loop
async def test_the_last_error_comes_out_itself_and_nothing_is_held(url: sa.URL) -> None:
    async with connected(url) as engine:
        errors = deadlocks(9)
        fn = Counted(
            *errors, act=lambda session: session.get_entity(Order, 1, LockOptions.ForUpdate)
        )
        with pytest.raises(DeadlockDetected, match="given up after 3 attempts") as caught:
            await async_run_transaction(maker(engine), fn, attempts=3, backoff=0)
        assert caught.value is errors[2]
        assert caught.value.attempts == fn.runs == 3
        assert in_use(engine) == 0
        async with maker(engine)() as session:
            await session.get_one_entity(Order, 1, LockOptions.ForUpdate | LockOptions.NoWait)


@pytest.mark.parametrize("error", [LookupError("no"), IntegrityError("INSERT", {}, OSError())])
@in_a_loop
async def test_no_other_error_is_repeated(url: sa.URL, error: Exception) -> None:
    async with connected(url) as engine:
        fn = Counted(error, act=lambda session: rename(session, "never"))
        with pytest.raises(type(error)) as caught:
            await async_run_transaction(maker(engine), fn)
        assert caught.value is error
        assert fn.runs == 1
        assert await name_in(engine) == "Ann"


@in_a_loop
async def test_a_failed_flush_that_was_swallowed_is_not_taken_for_success(url: sa.URL) -> None:
    async def act(session: Session) -> None:
        await rename(session, "never")
        session.add(Customer(id=2, name="there already"))
        with pytest.raises(IntegrityError):
            await session.flush()

    async with connected(url) as engine:
        with pytest.raises(PendingRollbackError):
            await async_run_transaction(maker(engine), Counted(act=act))
        assert await name_in(engine) == "Ann"


@in_a_loop
async def test_its_session_is_closed_with_all_that_it_has_loaded(url: sa.URL) -> None:
    async with connected(url) as engine:
        order = await async_run_transaction(maker(engine), lambda session: session.get(Order, 1))
        assert sa.inspect(order).detached


@in_a_loop
async def test_promises_are_kept_once_and_their_errors_repeat_nothing(url: sa.URL) -> None:
    kept: list[int] = []

    async def act(session: Session) -> None:
        number = fn.runs

        async def later() -> None:
            kept.append(await async_run_transaction(make, Counted(*deadlocks(1)), backoff=0))
            raise DeadlockDetected(f"after the commit of run {number}")

        session.on_commit(later)
        await rename(session, f"run {number}")

    async with connected(url) as engine:
        make, fn = maker(engine), Counted(*deadlocks(2), act=act)
        with pytest.raises(DeadlockDetected, match=r"^after the commit of run 3 "):
            await async_run_transaction(make, fn, backoff=0)
        assert kept == [2]
        assert fn.runs == 3
        assert await name_in(engine) == "run 3"


@in_a_loop
async def test_within_another_it_is_refused_of_either_kind(url: sa.URL) -> None:
    def never() -> Any:
        raise AssertionError("a session was opened")

    async def act(_: Session) -> None:
        with pytest.raises(LockMisuse):
            await async_run_transaction(never, Counted())
        with pytest.raises(LockMisuse):
            run_transaction(never, lambda _: None)
        with pytest.raises(LockMisuse):  # the function's task is part of it
            await asyncio.create_task(async_run_transaction(never, Counted()))

    async with connected(url) as engine:
        assert await async_run_transaction(maker(engine), Counted(act=act)) == 1


@in_a_loop
async def test_side_by_side_they_do_not_see_each_other(url: sa.URL) -> None:
    async def act(_: Session) -> None:
        running.append(1)
        if len(running) == 2:
            both_are_running.set()
        await both_are_running.wait()

    running: list[int] = []
    both_are_running = asyncio.Event()
    async with connected(url) as engine:
        both = (async_run_transaction(maker(engine), Counted(act=act)) for _ in range(2))
        assert await asyncio.gather(*both) == [1, 1]


@in_a_loop
async def test_a_session_that_is_in_a_transaction_is_refused(url: sa.URL) -> None:
    async with connected(url) as engine, maker(engine)() as session:
        await session.get(Customer, 1)
        with pytest.raises(LockMisuse, match="needs a new session for every attempt"):
            await async_run_transaction(lambda: session, Counted())
        assert session.in_transaction()


@pytest.mark.not_databases("sqlite")
@pytest.mark.parametrize("swallow", [False, True])
@in_a_loop
async def test_the_victim_of_a_deadlock_is_run_again(url: sa.URL, swallow: bool) -> None:
    runs: list[int] = []
    held: set[int] = set()
    both_hold, one_is_done = asyncio.Event(), asyncio.Event()

    async def cross(session: Session, mine: int, theirs: int) -> int:
        again = mine in runs
        runs.append(mine)
        if again:
            await one_is_done.wait()
        await session.execute(added_to(mine))
        held.add(mine)
        if len(held) == 2:
            both_hold.set()
        await both_hold.wait()
        try:
            await session.execute(added_to(theirs))
        except DeadlockDetected:
            if not swallow:
                raise
            with pytest.raises(PendingRollbackError):
                await session.execute(sa.text("INSERT INTO lk_customer VALUES (9, 'escaped')"))
        return mine

    async def run(make: Factory, mine: int, theirs: int) -> int:
        done = await async_run_transaction(make, lambda session: cross(session, mine, theirs))
        one_is_done.set()
        return done

    async with connected(url) as engine:
        if engine.dialect.name == "postgresql":
            event.listen(engine.sync_engine, "connect", look_for_deadlocks_at_once)
        make = maker(engine)
        both = run(make, 1, 2), run(make, 2, 1)
        assert [*await asyncio.gather(*both)] == [1, 2]
        assert len(runs) == 3
        async with make() as session:
            totals = await session.scalars(sa.select(Order.total).order_by(Order.id))
            assert list(totals) == [32, 7]
            assert await session.get(Customer, 9) is None


def added_to(ident: int) -> sa.Update:
    return sa.update(Order).where(Order.id == ident).values(total=Order.total + 1)


@pytest.mark.databases("postgresql")
@in_a_loop
async def test_a_statement_whose_cached_plan_has_changed(url: sa.URL) -> None:
    """Its columns changed after it was prepared; asyncpg and psycopg prepare it here."""
    prepared = {"connect_args": {"prepare_threshold": 0}} if "psycopg" in url.drivername else {}
    read = sa.text("SELECT * FROM rt_planned")
    async with connected(url) as owner, connected(url, **prepared) as engine:

        async def act(session: Session) -> None:
            await session.connection()
            if fn.runs == 1:
                await run("ALTER TABLE rt_planned ALTER COLUMN total TYPE bigint")
            assert [*await session.execute(read)] == [(1, 5)]

        async def run(*statements: str) -> None:
            async with owner.begin() as connection:
                for statement in statements:
                    await connection.exec_driver_sql(statement)

        fn = Counted(act=act)
        await run("CREATE TABLE rt_planned AS SELECT 1 AS id, 5 AS total")
        try:
            async with maker(engine)() as session:
                (await session.execute(read)).all()
                await session.commit()
            assert await async_run_transaction(maker(engine), fn, backoff=0) == 2
        finally:
            await run("DROP TABLE rt_planned")


# --------------------------------------------------------------------------------------------------
# A task cancelled in a transaction stops at once, and leaves nothing behind.

FOR_UPDATE = LockOptions.ForUpdate


async def check_cancelled(
    url: sa.URL, fn: Counted, reached: asyncio.Event, *, backoff: float = 0
) -> None:
    """Cancel it when it gets there; then no lock is held, and it did not run again."""
    async with connected(url) as engine:
        make = maker(engine)
        task = asyncio.create_task(
            async_run_transaction(make, fn, backoff=backoff, max_backoff=backoff)
        )
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert fn.runs == 1
        assert in_use(engine) == 0
        async with make() as session:
            assert (await session.get_one_entity(Order, 1, FOR_UPDATE | NO_WAIT)).total == 30


def stops_at(
    reached: asyncio.Event, prepare: Callable[[Session], object] = lambda _: None
) -> Callable[[Session], Awaitable[None]]:
    """Write under a lock, prepare the rest, and wait forever."""

    async def act(session: Session) -> None:
        (await session.get_one_entity(Order, 1, FOR_UPDATE)).total = 7
        await session.flush()
        prepare(session)
        reached.set()
        await asyncio.Event().wait()

    return act


@in_a_loop
async def test_in_the_function(url: sa.URL) -> None:
    reached = asyncio.Event()
    await check_cancelled(url, Counted(act=stops_at(reached)), reached)


@in_a_loop
async def test_between_two_attempts(url: sa.URL) -> None:
    reached = asyncio.Event()

    class Notice(logging.Handler):
        def emit(self, _: logging.LogRecord) -> None:
            reached.set()

    notice, log = Notice(), logging.getLogger("sa_doclock")
    log.addHandler(notice)
    log.setLevel(logging.INFO)
    try:
        fn = Counted(*deadlocks(1), act=lambda session: session.get_entity(Order, 1, FOR_UPDATE))
        await check_cancelled(url, fn, reached, backoff=1e6)
    finally:
        log.removeHandler(notice)
        log.setLevel(logging.NOTSET)


@in_a_loop
async def test_in_the_function_and_once_more_while_it_rolls_back(url: sa.URL) -> None:
    reached = asyncio.Event()

    def cancel_at_rollback(session: Session) -> None:
        # Not before the lock: the queries of an engine's first lock may end with a rollback.
        task = asyncio.current_task()
        assert task is not None
        event.listen(session.get_bind().engine, "rollback", lambda _: task.cancel(), once=True)

    await check_cancelled(url, Counted(act=stops_at(reached, cancel_at_rollback)), reached)
