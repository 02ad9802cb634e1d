"""The connection breaks at the COMMIT of several callers, before it arrives or before its answer does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import sessionmaker

from sa_doclock import AsyncLockingSession, DocumentGate, LockingSession, LockLost, LockOptions
from tests.integration.asyncio.drivers import DRIVERS, connected, for_asyncio, in_a_loop
from tests.integration.gate.queueing import wait_until_queued
from tests.reliability.combined.answers import Answer, wrong
from tests.reliability.combined.callers import Threads
from tests.reliability.combined.processes import stored
from tests.reliability.faults.proxy import Proxy, proxy_to
from tests.support.actors import PATIENCE, Actor
from tests.support.databases import Database
from tests.support.models import Customer, Order
from tests.support.waits import wait_until

pytestmark = pytest.mark.databases("postgresql", "mysql", "mariadb")

Session = LockingSession
COMBINED, CALLERS = 4, 8


@pytest.fixture
def proxy(documents: Database) -> Iterator[Proxy]:
    with proxy_to(documents.url) as proxy:
        yield proxy


@pytest.fixture
def through(documents: Database, proxy: Proxy) -> Iterator[sa.Engine]:
    """Make the engine that leads through the proxy."""
    engine = sa.create_engine(proxy.url, connect_args=documents.connect_args, pool_size=CALLERS)
    yield engine
    engine.dispose()


@pytest.fixture(params=[False, True], ids=["simple", "pipelined"])
def options(request: pytest.FixtureRequest, documents: Database) -> dict[str, Any]:
    """Return the options of the sessions."""
    if request.param and documents.name != "postgresql":
        pytest.skip("a pipeline is PostgreSQL's")
    return {"pipeline": request.param}


def change(key: int) -> Callable[[Any, Any], int]:
    """Return the function that raises the counter, and inserts a row with its number."""

    def function(session: Any, order: Any) -> int:
        order.total += 1
        session.add(Customer(id=key, name=str(order.total)))
        return int(order.total)

    return function


def fail(_session: Session, order: Any) -> None:
    order.total += 1000
    raise ZeroDivisionError


@pytest.mark.parametrize("reaches_server", [False, True], ids=["before", "after"])
def test_everybody_in_it_has_the_same_doubt_and_the_next_ones_go_on(
    proxy: Proxy,
    through: sa.Engine,
    alice: Actor[Session],
    engine: sa.Engine,
    options: dict[str, Any],
    reaches_server: bool,
) -> None:
    sessions = sessionmaker(through, class_=Session, **options)
    gate, reported = DocumentGate(combine=COMBINED), list[int]()
    connected: list[object] = []
    gate.run(sessions, Order, 2, change(2000))  # the pool has a connection
    sa.event.listen(through, "connect", lambda *_: connected.append(1))

    def with_mail(key: int) -> Callable[[Session, Any], int]:
        def function(session: Session, order: Any) -> int:
            session.on_commit(lambda: reported.append(key))
            return change(key)(session, order)

        return function

    functions = [with_mail(1000), fail, with_mail(1001), with_mail(1002), with_mail(1003)]
    alice.does(lambda session: session.get_one_entity(Order, 1, LockOptions.ForUpdate))
    calls: list[Future[int]] = []
    with ThreadPoolExecutor(len(functions)) as threads:
        for number, function in enumerate(functions, start=1):
            run: Callable[..., Any] = gate.run
            calls.append(threads.submit(run, sessions, Order, 1, function))
            wait_until_queued(gate, number=number)
        cut = proxy.cut_next_commit(reaches_server=reaches_server)
        alice.does(lambda session: session.rollback())
        errors = [call.exception(PATIENCE) for call in calls]
    assert cut.happened
    lost, own, *same, none = errors
    assert isinstance(lost, DBAPIError)
    assert lost.connection_invalidated
    assert not isinstance(lost, LockLost)  # which says that nothing was saved
    assert [one is lost for one in same] == [True, True]
    assert isinstance(own, ZeroDivisionError)
    assert none is None
    saved = 3 if reaches_server else 0
    assert calls[-1].result() == 31 + saved
    assert reported == [1003]
    assert connected == [1]
    numbers, counted = stored(engine)
    del numbers[2000]
    assert numbers == dict(zip([1000, 1001, 1002, 1003][3 - saved :], counted, strict=True))
    assert gate.waiting == 0


@pytest.mark.parametrize("reaches_server", [False, True], ids=["before", "after"])
@in_a_loop
async def test_of_tasks(documents: Database, proxy: Proxy, reaches_server: bool) -> None:
    gate = DocumentGate()

    def function_of(key: int) -> Callable[[AsyncLockingSession, Any], Awaitable[int]]:
        async def function(session: AsyncLockingSession, order: Any) -> int:
            return change(key)(session, order)

        return function

    async with connected(for_asyncio(proxy.url, DRIVERS[documents.name][0])) as engine:
        sessions = async_sessionmaker(engine, class_=AsyncLockingSession)
        await gate.async_run(sessions, Order, 2, function_of(2000))
        cut = proxy.cut_next_commit(reaches_server=reaches_server)
        calls = [gate.async_run(sessions, Order, 1, function_of(key)) for key in (1000, 1001, 1002)]
        errors = await asyncio.gather(*calls, return_exceptions=True)
        assert cut.happened
        assert isinstance(errors[0], DBAPIError)
        assert errors[0].connection_invalidated
        assert [error is errors[0] for error in errors] == [True] * 3
        saved = 3 if reaches_server else 0
        assert await gate.async_run(sessions, Order, 1, function_of(1003)) == 31 + saved


def test_time_and_again(
    proxy: Proxy, through: sa.Engine, engine: sa.Engine, options: dict[str, Any]
) -> None:
    answers: list[Answer] = []
    failures: list[DBAPIError] = []
    callers, over = Threads(1, answers.append, through, **options), threading.Event()

    def work() -> None:
        while not over.is_set():
            try:
                callers.call()
            except DBAPIError as error:  # noqa: PERF203  # the next one may succeed
                failures.append(error)

    with ThreadPoolExecutor(CALLERS) as threads:
        works = [threads.submit(work) for _ in range(CALLERS)]
        try:
            for reaches_server in (False, True) * 3:
                cut, before = proxy.cut_next_commit(reaches_server=reaches_server), len(answers)
                wait_until(lambda: cut.happened and len(answers) > before)  # noqa: B023
        finally:
            over.set()
        for one in works:
            one.result(PATIENCE)
    assert all(error.connection_invalidated for error in failures)
    numbers, counted = stored(engine)
    assert not [*wrong(answers, numbers, counted)]
    assert len(answers) < len(numbers) < len(answers) + len(failures)  # in doubt: some are saved
