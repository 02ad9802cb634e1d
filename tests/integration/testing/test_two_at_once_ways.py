"""Functions, coroutines and application clients in two_at_once(), and its outcomes."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

from sa_doclock import (
    AsyncLockingSession,
    DocumentGate,
    LockingSession,
    LockNotAvailable,
    LockOptions,
)
from sa_doclock.testing import concurrent, two_at_once
from sa_doclock.testing.lock_waits import ServersAsked
from sa_doclock.testing.scheduling import participant, scheduler
from tests.integration.asyncio.drivers import PATIENT, drivers_of, url_for
from tests.support.databases import Database
from tests.support.models import Customer, Line, Order

pytestmark = pytest.mark.read_committed

ForUpdate = LockOptions.ForUpdate
Total = Callable[[], int]
Priority = Literal["interactive", "batch"]
BOTH, LOST = 50, 40  # 30, and ten from each, or from one
NUMBERS = count(1000)  # of new rows


@pytest.fixture
def total(elsewhere: Callable[..., list[Any]]) -> Total:
    return lambda: elsewhere(sa.select(Order.total).where(Order.id == 1))[0][0]


@pytest.fixture
def async_engines(
    documents: Database, read_committed: dict[str, Any]
) -> Iterator[list[AsyncEngine]]:
    options = {**PATIENT.get(documents.name, {}), **read_committed}
    engines = [
        create_async_engine(url_for(documents, driver), poolclass=NullPool, **options)
        for driver in drivers_of(documents.column)
    ]
    yield engines
    for engine in engines:
        asyncio.run(engine.dispose())


async def add_ten(session: AsyncLockingSession, lock: LockOptions) -> int:
    async with session:
        order = await session.get_one_entity(Order, 1, lock)
        order.total += 10
        found = order.total
        await session.commit()
        return found


def test_coroutine_functions(
    async_engines: list[AsyncEngine], total: Total, start_over: Callable[[], None]
) -> None:
    for engine in async_engines:
        for lock, expected in ((LockOptions.None_, LOST), (ForUpdate, BOTH)):
            start_over()

            async def call(engine: AsyncEngine = engine, lock: LockOptions = lock) -> int:
                return await add_ten(AsyncLockingSession(engine), lock)

            first, second = two_at_once(call, call)
            assert (first.error, second.error) == (None, None)
            assert total() == expected
            assert {first.value, second.value} == ({40} if expected == LOST else {40, 50})


@pytest.mark.databases("sqlite")
def test_a_coroutine_beside_a_function_and_in_a_test_that_is_a_coroutine(
    engine: sa.Engine, async_engines: list[AsyncEngine], total: Total
) -> None:
    def function() -> None:
        with LockingSession(engine) as session:
            session.get_one(Order, 1).total += 10
            session.commit()

    async def test() -> None:
        session = AsyncLockingSession(async_engines[0])
        outcomes = two_at_once(function, lambda: add_ten(session, LockOptions.None_))
        assert [one.error for one in outcomes] == [None, None]

    asyncio.run(test())
    assert total() == LOST


def read_other_rows_first(session: LockingSession, lock: LockOptions) -> None:
    """Write unrelated rows before reading the order."""
    user = session.get_one(Customer, 1)
    session.add(Line(id=next(NUMBERS), order_id=2, name=user.name, value=1))
    session.flush()
    session.get_one_entity(Order, 1, lock).total += 10
    session.commit()


@pytest.mark.not_databases("sqlite")  # its lock is on the file, from the first write on
def test_a_write_before_the_read(
    session_factory: Callable[[], LockingSession], total: Total, start_over: Callable[[], None]
) -> None:
    for lock, expected in ((LockOptions.None_, LOST), (ForUpdate, BOTH)):
        start_over()

        def call(lock: LockOptions = lock) -> None:
            with session_factory() as session:
                read_other_rows_first(session, lock)

        outcomes = two_at_once(call, call)
        assert [one.error for one in outcomes] == [None, None]
        assert total() == expected


@pytest.mark.databases("sqlite", "postgresql")
def test_the_transaction_before_is_no_turn(
    session_factory: Callable[[], LockingSession], total: Total
) -> None:
    def call() -> None:
        with session_factory() as session:
            session.add(Line(id=next(NUMBERS), order_id=2, name="log", value=1))
            session.commit()
            session.get_one(Order, 1).total += 10
            session.commit()

    two_at_once(call, call)
    assert total() == LOST


def write_own_row(engine: sa.Engine, number: int, writes: str, note: Callable[[str], None]) -> None:
    """Write each letter to a row that the other function does not use; a space is a read."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for letter in writes:
            if letter == " ":
                connection.scalar(sa.select(Order.total).where(Order.id == number))
            else:
                connection.execute(sa.update(Order).where(Order.id == number).values(remark=letter))
                note(f"{number}{letter}")


@pytest.mark.databases("sqlite", "postgresql")
def test_a_turn_ends_at_the_next_write_after_another_read(engine: sa.Engine) -> None:
    done: list[str] = []
    outcomes = two_at_once(
        *(partial(write_own_row, engine, number, " ab cd", done.append) for number in (1, 2))
    )
    assert [one.error for one in outcomes] == [None, None]
    assert done == ["1a", "1b", "2a", "2b", "1c", "1d", "2c", "2d"]


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("locks", [False, True])
def test_a_client_of_fastapi(
    engine: sa.Engine, async_engines: list[AsyncEngine], total: Total, locks: bool
) -> None:
    fastapi = pytest.importorskip("fastapi")
    httpx = pytest.importorskip("httpx")
    lock, expected = (ForUpdate, BOTH) if locks else (LockOptions.None_, LOST)
    app = fastapi.FastAPI()

    def in_a_thread() -> None:
        with LockingSession(engine) as session:
            session.get_one_entity(Order, 1, lock).total += 10
            session.commit()

    async def in_a_task() -> int:
        return await add_ten(AsyncLockingSession(async_engines[0]), lock)

    app.post("/threads")(in_a_thread)
    app.post("/tasks")(in_a_task)

    async def post(path: str) -> int:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            status: int = (await client.post(path)).status_code
            return status

    for path in ("/threads", "/tasks"):
        outcomes = two_at_once(partial(post, path), partial(post, path))
        assert [one.result() for one in outcomes] == [200, 200]
    assert total() - 30 == 2 * (expected - 30)


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("locks", [False, True])
def test_a_client_of_flask(
    session_factory: Callable[[], LockingSession], total: Total, locks: bool
) -> None:
    flask = pytest.importorskip("flask")
    app = flask.Flask("shop")

    def add() -> str:
        with session_factory() as session:
            lock = ForUpdate if locks else LockOptions.None_
            session.get_one_entity(Order, 1, lock).total += 10
            session.commit()
        return ""

    app.post("/")(add)
    with app.app_context():  # the test's, not that of the requests
        outcomes = two_at_once(*[lambda: app.test_client().post("/").status_code] * 2)
    assert [one.value for one in outcomes] == [200, 200]
    assert total() == (BOTH if locks else LOST)


#: Seconds for a lock, far below the kit's patience.
SHORT = 1.5


@pytest.mark.parametrize("next_waits_at_server", [True, False])
def test_a_wait_at_a_gate(engine: sa.Engine, total: Total, *, next_waits_at_server: bool) -> None:
    gate = DocumentGate(next_waits_at_server=next_waits_at_server)
    make = sessionmaker(engine, class_=LockingSession, gate=gate)

    def call() -> None:
        with make() as session, session.locked(Order, 1, lock_timeout=SHORT) as order:
            order.total += 10

    outcomes = two_at_once(call, call, patience=60)
    assert [one.error for one in outcomes] == [None, None]
    assert total() == BOTH


def test_a_task_that_waits_at_a_gate(async_engines: list[AsyncEngine], total: Total) -> None:
    for number, engine in enumerate(async_engines, start=1):
        gate = DocumentGate(next_waits_at_server=False)

        async def call(engine: AsyncEngine = engine, gate: DocumentGate = gate) -> None:
            async with (
                AsyncLockingSession(engine, gate=gate) as session,
                session.locked(Order, 1, lock_timeout=SHORT) as order,
            ):
                order.total += 10

        outcomes = two_at_once(call, call, patience=60)
        assert [one.error for one in outcomes] == [None, None]
        assert total() == 30 + 20 * number


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("priority", ["interactive", "batch"])
def test_a_batch_that_tries_again(
    engine: sa.Engine, total: Total, *, priority: Priority, gated: bool
) -> None:
    """With a gate a batch sends nothing while another session of the process holds the document."""
    gate = DocumentGate() if gated else None
    make = sessionmaker(engine, class_=LockingSession, gate=gate)
    held = threading.Event()

    def hold() -> None:
        with make(priority=priority) as session, session.locked(Order, 1) as order:
            held.set()
            order.total += 10

    def come_later() -> None:
        assert held.wait(10)
        with (
            make(priority="batch") as session,
            session.locked(Order, 1, lock_timeout=SHORT) as order,
        ):
            order.total += 10

    outcomes = two_at_once(hold, come_later, patience=60)
    assert [one.error for one in outcomes] == [None, None]
    assert total() == BOTH


def test_a_batch_task_that_tries_again(async_engines: list[AsyncEngine], total: Total) -> None:
    for number, engine in enumerate(async_engines, start=1):
        make = async_sessionmaker(engine, class_=AsyncLockingSession, gate=DocumentGate())
        held = threading.Event()

        async def hold(make: Any = make, held: threading.Event = held) -> None:
            async with make() as session, session.locked(Order, 1) as order:
                held.set()
                order.total += 10

        async def come_later(make: Any = make, held: threading.Event = held) -> None:
            assert await asyncio.to_thread(held.wait, 10)
            async with (
                make(priority="batch") as session,
                session.locked(Order, 1, lock_timeout=SHORT) as order,
            ):
                order.total += 10

        outcomes = two_at_once(hold, come_later, patience=60)
        assert [one.error for one in outcomes] == [None, None]
        assert total() == 30 + 20 * number


def add_ten_under_lock(session_factory: Callable[[], LockingSession]) -> None:
    with session_factory() as session, session.locked(Order, 1) as order:
        order.total += 10


@pytest.mark.not_databases("sqlite")
def test_a_server_is_believed_that_says_who_waits(
    session_factory: Callable[[], LockingSession], total: Total, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrent, "LONG_STATEMENT", math.inf)
    call = partial(add_ten_under_lock, session_factory)
    outcomes = two_at_once(call, call, patience=math.inf, timeout=10)
    assert [one.error for one in outcomes] == [None, None]
    assert total() == BOTH


@pytest.mark.not_databases("sqlite")
def test_a_long_statement_waits_where_no_server_says_so(
    session_factory: Callable[[], LockingSession], total: Total, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServersAsked, "blockers", lambda *_: None)
    monkeypatch.setattr(concurrent, "LONG_STATEMENT", 0.05)
    call = partial(add_ten_under_lock, session_factory)
    outcomes = two_at_once(call, call, patience=math.inf, timeout=10)
    assert [one.error for one in outcomes] == [None, None]
    assert total() == BOTH


@pytest.mark.databases("sqlite", "postgresql")
def test_a_function_that_asks_again_until_it_has_the_lock(
    session_factory: Callable[[], LockingSession], total: Total
) -> None:
    held, pause = threading.Event(), threading.Event()

    def hold() -> None:
        with session_factory() as session, session.locked(Order, 1) as order:
            held.set()
            order.total += 10

    def is_refused() -> bool:
        try:
            with (
                session_factory() as session,
                session.locked(Order, 1, ForUpdate | LockOptions.NoWait) as order,
            ):
                order.total += 10
        except LockNotAvailable:
            return True
        return False

    def ask_again() -> None:
        assert held.wait(10)
        while is_refused():
            pause.wait(0.1)

    outcomes = two_at_once(hold, ask_again, patience=math.inf, timeout=10)
    assert [one.error for one in outcomes] == [None, None]
    assert total() == BOTH


@pytest.mark.databases("sqlite", "postgresql")
def test_a_wait_inside_of_the_process(engine: sa.Engine, total: Total) -> None:
    mutex = threading.Lock()

    def under_mutex() -> None:
        with mutex, LockingSession(engine) as session:
            session.get_one(Order, 1).total -= 10
            session.commit()

    outcomes = two_at_once(under_mutex, under_mutex, patience=0.1)
    assert [one.error for one in outcomes] == [None, None]
    assert total() == 10


def test_what_comes_out(session_factory: Callable[[], LockingSession]) -> None:
    class Interrupt(BaseException):
        pass

    def fails() -> None:
        with session_factory() as session:
            session.get_one(Order, 1).total += 10
            session.flush()
            raise Interrupt

    first, second = two_at_once(fails, lambda: 7)
    assert isinstance(first.error, Interrupt)
    assert first.value is None
    assert (second.value, second.error, second.result()) == (7, None, 7)
    with pytest.raises(Interrupt):
        first.result()


@pytest.mark.databases("sqlite")
def test_statements_of_others_do_not_wait(session: LockingSession, total: Total) -> None:
    """Only the two functions wait; the test's own statements do not."""

    def call() -> None:
        def other() -> None:
            session.get_one(Order, 1).total += 10
            session.commit()

        thread = threading.Thread(target=other)  # without this thread's context
        thread.start()
        thread.join(10)
        assert not thread.is_alive()

    two_at_once(call, lambda: None)
    assert total() == LOST


def test_a_function_that_does_not_end() -> None:
    go_on = threading.Event()
    with pytest.raises(TimeoutError, match=r"the second has not ended after 0\.05 s$"):
        two_at_once(lambda: None, go_on.wait, timeout=0.05)
    go_on.set()


@pytest.mark.databases("sqlite", "postgresql")
def test_functions_that_write_again_and_again_do_not_end(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = ended = 0
    changed = threading.Condition()
    for module in (participant, scheduler):
        clock = SimpleNamespace(monotonic=lambda: time.monotonic() + late)
        monkeypatch.setattr(module, "time", clock)

    def note(_: str) -> None:
        nonlocal late
        late = 100

    def write(number: int) -> None:
        nonlocal ended
        try:
            write_own_row(engine, number, " a" * 20, note)
        finally:  # perhaps by an error: the listeners are removed while it uses them
            with changed:
                ended += 1
                changed.notify_all()

    with pytest.raises(TimeoutError, match="the first and the second has not ended after 60 s"):
        two_at_once(partial(write, 1), partial(write, 2))
    with changed:
        assert changed.wait_for(lambda: ended == 2, 10)


@pytest.mark.databases("sqlite", "postgresql")
def test_a_function_that_has_not_ended_is_none_of_the_next_two(engine: sa.Engine) -> None:
    go_on, written = threading.Event(), threading.Event()

    def write_late() -> None:
        assert go_on.wait(10)
        write_own_row(engine, 1, "a", lambda _: written.set())

    def wait_for_it() -> None:
        go_on.set()
        assert written.wait(10)

    with pytest.raises(TimeoutError):
        two_at_once(write_late, lambda: None, timeout=0.05)
    outcomes = two_at_once(wait_for_it, lambda: None)
    assert [one.error for one in outcomes] == [None, None]


def test_a_coroutine_that_does_not_end() -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError, match="the first and the second has not ended"):
        two_at_once(hang, hang, timeout=0.05)


def test_what_is_no_function() -> None:
    def generator() -> Iterator[int]:
        yield 1

    for wrong in (None, 7, generator):
        arguments: Any = (lambda: None, wrong)
        with pytest.raises(TypeError, match="second"):
            two_at_once(*arguments)


def test_the_listeners_are_gone_afterwards(engine: sa.Engine) -> None:
    dispatch: Any = engine.dispatch
    before = len(dispatch.before_cursor_execute)

    def look() -> int:
        return len(dispatch.before_cursor_execute)

    first, _ = two_at_once(look, look)
    assert first.value == before + 1
    assert len(dispatch.before_cursor_execute) == before
