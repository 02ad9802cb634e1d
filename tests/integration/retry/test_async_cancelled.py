"""A task that is cancelled in a transaction: it comes out at once, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockOptions, async_run_transaction
from tests.integration.asyncio.drivers import connected, in_a_loop
from tests.integration.retry.counting import deadlocks
from tests.integration.retry.test_async import Counted, Session, in_use, maker
from tests.support.models import Order

FOR_UPDATE, NO_WAIT = LockOptions.ForUpdate, LockOptions.NoWait


async def check_cancelled(
    url: sa.URL, fn: Counted, reached: asyncio.Event, *, backoff: float = 0
) -> None:
    """Cancel it when it is there; then nothing is held, and it was not run again."""
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
    """Write under a lock, prepare the rest, and wait for ever."""

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
        # Not before the lock: the questions of an engine's first lock may end by a rollback.
        task = asyncio.current_task()
        assert task is not None
        event.listen(session.get_bind().engine, "rollback", lambda _: task.cancel(), once=True)

    await check_cancelled(url, Counted(act=stops_at(reached, cancel_at_rollback)), reached)
