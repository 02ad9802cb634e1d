"""await gate.async_run(): cancelled tasks, and awaited functions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import async_sessionmaker

from sa_doclock import (
    AsyncLockingSession,
    CommitUnknown,
    DocumentGate,
    LockLost,
    LockMisuse,
    LockNotAvailable,
    LockOptions,
)
from sa_doclock.features.gate import queues_of
from tests.integration.asyncio.drivers import DRIVERS, connected, in_a_loop, url_for
from tests.integration.gate.queueing import until_queued
from tests.support.databases import Database
from tests.support.models import Customer, Order

Session = AsyncLockingSession
Makes = async_sessionmaker[Session]
Function = Callable[[Session, Any], Awaitable[Any]]


@asynccontextmanager
async def opened(database: Database) -> AsyncIterator[Makes]:
    url = url_for(database, DRIVERS[database.name][0])
    async with connected(url, pool_size=20, max_overflow=0) as engine:
        yield async_sessionmaker(engine, class_=AsyncLockingSession, expire_on_commit=False)


def add(number: int) -> Function:
    async def function(session: Session, order: Any) -> int:
        order.total += number
        await session.flush()
        assert [line.value for line in order.lines] == [10, 20]  # loaded
        return int(order.total)

    return function


async def total(makes: Makes) -> int:
    async with makes() as session:
        return (await session.get_one(Order, 1)).total


class Callers:
    """Tasks that call one after another, while Order 1 is held."""

    def __init__(self, gate: DocumentGate, makes: Makes) -> None:
        self.gate, self.makes = gate, makes

    async def send(self, function: Function, **how: Any) -> asyncio.Task[Any]:
        before = self.gate.waiting
        call = self.gate.async_run(self.makes, Order, 1, function, **how)
        task = asyncio.create_task(call)
        await until_queued(self.gate, before + 1)
        return task


@in_a_loop
async def test_each_has_its_own_answer_and_a_cancelled_one_is_left_out(documents: Database) -> None:
    gate, reported = DocumentGate(), list[str]()

    async def mail() -> None:
        await asyncio.sleep(0)
        reported.append("mail")

    async def with_mail(session: Session, order: Any) -> int:
        session.on_commit(mail)
        return int(await add(4)(session, order))

    async def fail(_session: Session, order: Any) -> None:
        order.total += 1000
        raise ZeroDivisionError

    async with opened(documents) as makes:
        callers = Callers(gate, makes)
        async with makes() as holder:
            await holder.get_one_entity(Order, 1, LockOptions.ForUpdate)
            head = await callers.send(add(1))
            tasks = [await callers.send(one) for one in (add(2), fail, with_mail, add(8))]
            late = await callers.send(add(16), lock_timeout=0.05)
            assert isinstance(
                (await asyncio.gather(late, return_exceptions=True))[0], LockNotAvailable
            )
            head.cancel()
            tasks[0].cancel()
            await holder.rollback()
        found = await asyncio.gather(head, *tasks, return_exceptions=True)
        kinds = [one if isinstance(one, int) else type(one) for one in found]
        cancelled = asyncio.CancelledError
        assert kinds == [cancelled, cancelled, ZeroDivisionError, 34, 42]
        assert reported == ["mail"]
        assert await total(makes) == 42
        assert gate.waiting == 0


@in_a_loop
async def test_a_caller_that_is_cancelled_while_its_function_runs_takes_nobody_along(
    documents: Database,
) -> None:
    gate, begun, goes_on = DocumentGate(), asyncio.Event(), asyncio.Event()

    async def wait(session: Session, order: Any) -> int:
        begun.set()
        await goes_on.wait()
        return int(await add(1)(session, order))

    async with opened(documents) as makes:
        callers = Callers(gate, makes)
        slow = asyncio.create_task(gate.async_run(makes, Order, 1, wait))
        await begun.wait()
        second = await callers.send(add(2))
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        goes_on.set()
        assert await second == 33
        assert await total(makes) == 33


@in_a_loop
async def test_the_order_of_answers_is_that_of_arrival(documents: Database) -> None:
    gate, answers = DocumentGate(), list[int]()

    async def call(makes: Makes) -> None:
        for _ in range(6):
            answers.append(await gate.async_run(makes, Order, 1, add(1)))

    async with opened(documents) as makes:
        await asyncio.gather(*(call(makes) for _ in range(5)))
    assert answers == list(range(31, 61))


@in_a_loop
async def test_a_cancelled_caller_still_leads_where_its_function_has_to_run_again(
    documents: Database,
) -> None:
    gate, begun, goes_on = DocumentGate(), asyncio.Event(), asyncio.Event()

    async def break_flush(session: Session, _order: Any) -> None:
        session.add(Customer(id=1, name="again"))
        begun.set()
        await goes_on.wait()

    async with opened(documents) as makes:
        callers = Callers(gate, makes)
        async with makes() as holder:
            await holder.get_one_entity(Order, 1, LockOptions.ForUpdate)
            first = await callers.send(add(1))
            second = await callers.send(break_flush)
            await holder.rollback()
        await begun.wait()
        third = await callers.send(add(2))
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        goes_on.set()
        assert [await first, await third] == [31, 33]
        assert await total(makes) == 33
        await asyncio.gather(*queues_of(gate)._tasks)
        assert gate.waiting == 0


FORGETS: dict[str, Callable[[Session, Any], object]] = {
    "the header": lambda session, order: session.expire(order),
    "the collection": lambda session, order: session.expire(order, ["lines"]),
    "a part": lambda session, order: session.expire(order.lines[1]),
    "all": lambda session, _order: session.expire_all(),
    "the object": lambda session, order: session.expunge(order),
}


@pytest.mark.parametrize("forget", FORGETS.values(), ids=FORGETS)
@in_a_loop
async def test_whatever_a_function_expires_the_next_one_has_the_document_loaded(
    documents: Database, forget: Callable[[Session, Any], object]
) -> None:
    async def function(session: Session, order: Any) -> None:
        await asyncio.sleep(0)
        forget(session, order)

    gate = DocumentGate()
    async with opened(documents) as makes:
        callers = Callers(gate, makes)
        async with makes() as holder:
            await holder.get_one_entity(Order, 1, LockOptions.ForUpdate)
            calls = [await callers.send(one) for one in (add(1), function, add(2))]
            await holder.rollback()
        assert await asyncio.gather(*calls) == [31, None, 33]
        assert await total(makes) == 33


@in_a_loop
async def test_the_same_document_within_a_function_is_refused(documents: Database) -> None:
    gate = DocumentGate()

    async with opened(documents) as makes:

        async def again(_session: Session, _order: Any) -> None:
            await gate.async_run(makes, Order, 1, add(1))

        with pytest.raises(LockMisuse, match="a function of gate"):
            await gate.async_run(makes, Order, 1, again)
        assert await gate.async_run(makes, Order, 1, add(1)) == 31


@in_a_loop
async def test_a_hundred_tasks_lose_nothing(documents: Database) -> None:
    gate = DocumentGate()
    async with opened(documents) as makes:
        calls = [gate.async_run(makes, Order, 1, add(1)) for _ in range(100)]
        answers = await asyncio.gather(*calls)
        assert answers == list(range(31, 131))
        assert await total(makes) == 130


@in_a_loop
async def test_a_function_may_return_a_task(documents: Database) -> None:
    gate = DocumentGate(combine=20)
    async with opened(documents) as makes:

        def start(session: Session, order: Any) -> asyncio.Task[int]:
            return asyncio.create_task(add(5)(session, order))  # type: ignore[arg-type]

        assert await gate.async_run(makes, Order, 1, start) == 35
        assert await total(makes) == 35


@in_a_loop
async def test_a_function_that_is_cancelled_undoes_its_own_alone(documents: Database) -> None:
    async def cancels(_session: Session, order: Any) -> None:
        order.total = 99
        raise asyncio.CancelledError

    gate = DocumentGate(combine=20)
    async with opened(documents) as makes, makes() as holder:
        await holder.get_entity(Order, 1, LockOptions.ForUpdate)
        callers = Callers(gate, makes)
        calls = [await callers.send(one) for one in (add(1), cancels, add(2))]
        await holder.commit()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(results[1], asyncio.CancelledError)
        assert (results[0], results[2]) == (31, 33)
        assert await total(makes) == 33


@in_a_loop
async def test_a_task_that_is_cancelled_before_its_first_step_gives_up_the_queue(
    documents: Database,
) -> None:
    gate = DocumentGate()
    async with opened(documents) as makes:
        first = asyncio.create_task(gate.async_run(makes, Order, 1, add(1)))
        while not queues_of(gate)._tasks:  # noqa: ASYNC110  # there is no event for it
            await asyncio.sleep(0)
        (running,) = queues_of(gate)._tasks
        second = asyncio.create_task(gate.async_run(makes, Order, 1, add(2)))
        running.cancel()  # as in a program that cancels all_tasks()
        with pytest.raises(LockLost, match="nothing was saved"):
            await first
        assert await second == 32
        assert await total(makes) == 32


@pytest.mark.databases(
    "postgresql", "mysql", "mariadb"
)  # aiosqlite continues a cancelled statement
@in_a_loop
async def test_where_all_tasks_are_cancelled_nobody_waits_and_nobody_is_misinformed(
    documents: Database,
) -> None:
    async with opened(documents) as makes:
        gate, saved = DocumentGate(), 30
        for steps in range(24):
            calls = [asyncio.create_task(gate.async_run(makes, Order, 1, add(1))) for _ in "123"]
            for _ in range(steps):
                await asyncio.sleep(0.001 * (steps % 3))
            for task in [*queues_of(gate)._tasks]:
                task.cancel()
            answers = await asyncio.gather(*calls, return_exceptions=True)
            kinds = {type(answer) for answer in answers}
            assert kinds <= {int, LockLost, CommitUnknown}
            told = sum(isinstance(answer, int) for answer in answers)
            found = await total(makes) - saved
            assert found == told or CommitUnknown in kinds
            assert await gate.async_run(makes, Order, 1, add(0)) == saved + found
            assert (gate.waiting, queues_of(gate).documents) == (0, {})
            saved += found


@in_a_loop
async def test_a_task_that_outlives_its_function_may_call_again(documents: Database) -> None:
    gate, go_on = DocumentGate(combine=20), asyncio.Event()
    async with opened(documents) as makes:

        async def later() -> int:
            await go_on.wait()
            return int(await gate.async_run(makes, Order, 1, add(1)))

        async def starts(session: Session, order: Any) -> asyncio.Task[int]:
            await add(1)(session, order)
            started.append(asyncio.create_task(later()))
            return started[0]

        started: list[asyncio.Task[int]] = []

        async def function(session: Session, order: Any) -> None:
            await starts(session, order)

        await gate.async_run(makes, Order, 1, function)
        go_on.set()
        assert await started[0] == 32
