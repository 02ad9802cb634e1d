"""Queries of one engine over one connection, shared by all threads or tasks that ask the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from types import SimpleNamespace

import pytest
from sqlalchemy.util import await_only, greenlet_spawn

from sa_doclock.features import diagnosis
from sa_doclock.features.diagnosis import SharedQueries

Queries = SharedQueries[int, str]


class Server:
    """Counts connections, and answers with their numbers."""

    def __init__(self) -> None:
        self.made = self.closed = 0

    @contextmanager
    def connect(self) -> Iterator[int]:
        self.made += 1
        assert self.made == self.closed + 1, "two at once"
        yield self.made
        self.closed += 1


class Clock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(diagnosis, "time", SimpleNamespace(monotonic=clock))
    return clock


@pytest.fixture
def server() -> Server:
    return Server()


def wait_until_asked(queries: Queries, count: int) -> None:
    for _ in range(30_000):
        if len(queries._answers) >= count:
            return
        Event().wait(0.001)
    raise AssertionError(f"only {len(queries._answers)} have asked")


def answer(connection: int) -> str:
    return f"over {connection}"


def never(_: int) -> str:
    raise AssertionError("asked again")


def test_an_answer_is_shared_for_half_a_second(clock: Clock, server: Server) -> None:
    queries = Queries(under_asyncio=False)
    assert queries.ask("a", answer, server.connect) == "over 1"
    clock.now = 0.499
    assert queries.ask("a", never, server.connect) == "over 1"
    assert queries.ask("b", answer, server.connect) == "over 2"
    clock.now = 0.5
    assert queries.ask("a", answer, server.connect) == "over 3"
    assert queries.ask("b", never, server.connect) == "over 2"
    clock.now = 7.0
    assert queries.ask("c", answer, server.connect) == "over 4"
    assert list(queries._answers) == ["c"]  # nothing stays forever
    assert len(queries._answered) == 1


def test_all_who_ask_at_once_get_their_answers_over_one_connection(server: Server) -> None:
    queries = Queries(under_asyncio=False)
    asked, go_on = Event(), Event()

    def slow(connection: int) -> str:
        asked.set()
        go_on.wait(30)
        return answer(connection)

    with ThreadPoolExecutor(41) as threads:
        first = threads.submit(queries.ask, 0, slow, server.connect)
        assert asked.wait(30)
        same = threads.submit(queries.ask, 0, never, server.connect)
        others = [threads.submit(queries.ask, one, answer, server.connect) for one in range(1, 40)]
        wait_until_asked(queries, 40)
        go_on.set()
        assert {one.result() for one in (first, same, *others)} == {"over 1"}
    assert (server.made, server.closed) == (1, 1)


def test_who_comes_while_the_connection_is_closed_gets_another(server: Server) -> None:
    queries = Queries(under_asyncio=False)
    closing, go_on = Event(), Event()

    @contextmanager
    def connect() -> Iterator[int]:
        with server.connect() as connection:
            yield connection
            closing.set()
            go_on.wait(30)

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(queries.ask, "a", answer, connect)
        assert closing.wait(30)
        second = threads.submit(queries.ask, "b", answer, connect)
        wait_until_asked(queries, 2)
        go_on.set()
        assert (first.result(), second.result()) == ("over 1", "over 2")
    assert (server.made, server.closed) == (2, 2)


def test_one_that_fails_leaves_its_own_without_an_answer(clock: Clock, server: Server) -> None:
    queries = Queries(under_asyncio=False)
    asked, go_on = Event(), Event()

    def fail(_: int) -> str:
        asked.set()
        go_on.wait(30)
        raise RuntimeError("no")

    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(queries.ask, "a", fail, server.connect)
        assert asked.wait(30)
        same = threads.submit(queries.ask, "a", never, server.connect)
        other = threads.submit(queries.ask, "b", answer, server.connect)
        wait_until_asked(queries, 2)
        go_on.set()
        with pytest.raises(RuntimeError, match="no"):
            first.result()
        assert (same.result(), other.result()) == (None, "over 1")
    assert queries.ask("a", never, server.connect) is None  # nor does it ask the server at once
    clock.now = 1.0
    assert queries.ask("a", answer, server.connect) == "over 2"


def test_no_connection_no_answers(clock: Clock, server: Server) -> None:
    queries = Queries(under_asyncio=False)
    asked, go_on = Event(), Event()

    @contextmanager
    def refused() -> Iterator[int]:
        asked.set()
        go_on.wait(30)
        raise ConnectionRefusedError("full")
        yield 0

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(queries.ask, "a", never, refused)
        assert asked.wait(30)
        other = threads.submit(queries.ask, "b", never, refused)
        wait_until_asked(queries, 2)
        go_on.set()
        with pytest.raises(ConnectionRefusedError, match="full"):
            first.result()
        assert other.result() is None
    clock.now = 1.0
    assert queries.ask("a", answer, server.connect) == "over 1"


def test_nobody_waits_for_long(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    queries = Queries(under_asyncio=False)
    asked, go_on = Event(), Event()

    def slow(_: int) -> str:
        asked.set()
        go_on.wait(30)
        return "slow"

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(queries.ask, "a", slow, server.connect)
        assert asked.wait(30)
        monkeypatch.setattr(diagnosis, "PATIENCE", 0.01)
        for query in ("a", "b"):
            with pytest.raises(futures.TimeoutError):
                queries.ask(query, never, server.connect)
        monkeypatch.undo()
        del queries._waiting[0]
        go_on.set()
        assert first.result() == "slow"


def test_who_asks_for_others_does_not_do_so_for_long(clock: Clock, server: Server) -> None:
    queries = Queries(under_asyncio=False)
    asked, go_on = Event(), Event()

    def slow(_: int) -> str:
        asked.set()
        go_on.wait(30)
        clock.now += diagnosis.PATIENCE
        return "slow"

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(queries.ask, "a", slow, server.connect)
        assert asked.wait(30)
        other = threads.submit(queries.ask, "b", never, server.connect)
        wait_until_asked(queries, 2)
        go_on.set()
        assert (first.result(), other.result()) == ("slow", None)
    assert queries.ask("c", answer, server.connect) == "over 2"


def test_tasks_of_one_thread_wait_without_blocking_it(server: Server) -> None:
    async def main() -> None:
        queries = Queries(under_asyncio=True)
        asked, go_on = asyncio.Event(), asyncio.Event()

        def slow(_: int) -> str:
            asked.set()
            await_only(go_on.wait())
            return "slow"

        def ask(query: str) -> asyncio.Task[str | None]:
            return asyncio.create_task(greenlet_spawn(queries.ask, query, answer, server.connect))

        first = greenlet_spawn(queries.ask, "a", slow, server.connect)
        tasks = [asyncio.create_task(first)]
        await asked.wait()
        tasks += [ask(query) for query in ("a", "b", "a")]
        await asyncio.sleep(0)
        tasks[1].cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]
        found = [await task for task in (tasks[0], *tasks[2:])]
        assert found == ["slow", "over 1", "slow"]

    asyncio.run(main())
    assert server.made == 1


def test_a_task_that_is_cancelled_while_it_asks_leaves_the_others_without_an_answer(
    server: Server,
) -> None:
    async def main() -> None:
        queries = Queries(under_asyncio=True)
        asked = asyncio.Event()

        def endless(_: int) -> str:
            asked.set()
            await_only(asyncio.Event().wait())
            raise AssertionError

        first = asyncio.create_task(greenlet_spawn(queries.ask, "a", endless, server.connect))
        await asked.wait()
        waiting = [
            asyncio.create_task(greenlet_spawn(queries.ask, query, never, server.connect))
            for query in ("a", "b")
        ]
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert [await task for task in waiting] == [None, None]
        assert not queries._is_connected

    asyncio.run(main())
