"""gate.run() of several processes: the checker, the order of answers, kills, and COMMITs that are cut."""

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
from tests.reliability.combined.callers import CALLERS, CALLS, Threads
from tests.reliability.combined.processes import Answer, started, stored, wrong, wrong_in
from tests.reliability.faults.proxy import Proxy, proxy_to
from tests.support.actors import PATIENCE, Actor
from tests.support.databases import Database
from tests.support.models import Customer, Order
from tests.support.waits import poll_seconds_of, wait_until, waits_at

# --------------------------------------------------------------------------------------------------
# The checker finds each kind of history that no commit order explains.

GOOD = (
    Answer(process=1, key=11, arrival=0, invoked=1.0, answered=4.0, number=31),
    Answer(process=2, key=21, arrival=0, invoked=1.0, answered=3.0, number=32),
    Answer(process=1, key=12, arrival=1, invoked=2.0, answered=4.5, number=33),
    Answer(process=2, key=22, arrival=1, invoked=5.0, answered=6.0, number=34),
)
STORED = {one.key: one.number for one in GOOD}
COUNTED = range(31, 35)


def test_what_is_in_order() -> None:
    assert not [*wrong(GOOD, STORED, COUNTED)]
    # Its process was killed, so no listener was notified of this saved call.
    assert not [*wrong(GOOD[1:], STORED, COUNTED)]


@pytest.mark.parametrize(
    ("index", "changed", "text"),
    [
        (3, {"number": 33}, "33 was given 2 times"),
        (3, {"key": 23}, "34 was answered, and None is saved"),
        (0, {"invoked": 3.5}, "31 was called after a greater number was answered"),
        (2, {"arrival": -1}, "process 1, in order of arrival: 31 after 33"),
    ],
)
def test_what_is_not(index: int, changed: dict[str, int], text: str) -> None:
    answers = [*GOOD]
    answers[index] = answers[index]._replace(**changed)
    assert text in [*wrong(answers, STORED, COUNTED)]


@pytest.mark.parametrize(
    "stored", [{**STORED, 23: 34}, {**STORED, 23: 36}, {11: 31, 21: 32, 12: 33}]
)
def test_what_is_saved_is_what_was_counted(stored: dict[int, int]) -> None:
    assert any("the counter has given" in one for one in wrong(GOOD[:3], stored, COUNTED))


# --------------------------------------------------------------------------------------------------
# The answers follow commit order, and within each process arrival order.


def test_of_two_gates(engine: sa.Engine) -> None:
    answers: list[Answer] = []
    both = [Threads(number, answers.append, engine) for number in (1, 2)]
    with ThreadPoolExecutor(2) as threads:
        for one in [threads.submit(each.run, number=4, calls=5) for each in both]:
            one.result()
    assert len(answers) == 2 * 4 * 5
    assert not [*wrong(answers, *stored(engine))]
    for each in both:
        assert each.committed == sorted(each.committed)


@pytest.mark.slow
def test_of_processes(documents: Database, engine: sa.Engine) -> None:
    with started(documents, "threads", "threads", "tasks") as processes:
        for one in processes:
            one.begin()
        for one in processes:
            one.wait_until_ended()
    for one in processes:
        assert len(one.answers) == len(one.committed) == CALLERS * CALLS
    assert not wrong_in(processes, engine)


# --------------------------------------------------------------------------------------------------
# A process is killed in the middle of a combined commit while other processes' commits wait.


@pytest.mark.slow
def test_nothing_of_its_transaction_is_saved_and_the_others_go_on(
    documents: Database, engine: sa.Engine
) -> None:
    with started(documents, "victim", "threads", "tasks") as processes:
        victim, *others = processes
        victim.begin()
        while not victim.inside:
            assert victim.read()
        for one in others:
            one.begin()
        if documents.name != "sqlite":  # SQLite has no server to ask
            wait_until(
                lambda: len({waiter for waiter, _ in waits_at(documents)}) >= len(others),
                poll_seconds=poll_seconds_of(documents),
            )
        victim.kill()
        for one in others:
            one.wait_until_ended()
    assert len(victim.answers) >= 5
    assert len(victim.inside) == 3
    assert not stored(engine)[0].keys() & {*victim.inside}
    for one in others:
        assert len(one.answers) == CALLERS * CALLS
    assert not wrong_in(processes, engine)


# --------------------------------------------------------------------------------------------------
# The connection breaks at the COMMIT of several callers, before the COMMIT or its answer arrives.

Session = LockingSession
COMBINED, CALLERS_COMMIT_CUT = 4, 8


@pytest.fixture
def proxy(documents: Database) -> Iterator[Proxy]:
    with proxy_to(documents.url) as proxy:
        yield proxy


@pytest.fixture
def through(documents: Database, proxy: Proxy) -> Iterator[sa.Engine]:
    """Make the engine that connects through the proxy."""
    engine = sa.create_engine(
        proxy.url, connect_args=documents.connect_args, pool_size=CALLERS_COMMIT_CUT
    )
    yield engine
    engine.dispose()


@pytest.fixture(params=[False, True], ids=["simple", "pipelined"])
def options(request: pytest.FixtureRequest, documents: Database) -> dict[str, Any]:
    if request.param and documents.name != "postgresql":
        pytest.skip("a pipeline is PostgreSQL's")
    return {"pipeline": request.param}


def change(key: int) -> Callable[[Any, Any], int]:
    """Return the function that increments the counter, and inserts a row with its number."""

    def function(session: Any, order: Any) -> int:
        order.total += 1
        session.add(Customer(id=key, name=str(order.total)))
        return int(order.total)

    return function


def fail(_session: Session, order: Any) -> None:
    order.total += 1000
    raise ZeroDivisionError


@pytest.mark.databases("postgresql", "mysql", "mariadb")
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
    assert not isinstance(lost, LockLost)  # LockLost means that nothing was saved
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


@pytest.mark.databases("postgresql", "mysql", "mariadb")
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


@pytest.mark.databases("postgresql", "mysql", "mariadb")
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

    with ThreadPoolExecutor(CALLERS_COMMIT_CUT) as threads:
        works = [threads.submit(work) for _ in range(CALLERS_COMMIT_CUT)]
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
