"""Every method that takes a function refuses one that cannot run, before it sends anything."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial, wraps
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_doclock import (
    AsyncLockingSession,
    DocumentGate,
    LockingSession,
    async_claim_each,
    async_run_transaction,
    claim_each,
    run_transaction,
    transactional,
)
from sa_doclock.functions import check_function
from sa_doclock.testing import async_two_at_once, explore, two_at_once
from tests.support.rows import rows


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "functions_order"
    id: Mapped[int] = mapped_column(primary_key=True)


def never() -> Any:
    pytest.fail("a session was made")


def generates(*_: Any) -> Iterator[int]:
    yield 1


async def generates_later(*_: Any) -> AsyncIterator[int]:
    yield 1


async def later(*_: Any) -> int:
    return 1


def wrong_number(a: Any, b: Any, c: Any) -> None: ...


class Methods:
    def generates(self, *_: Any) -> Iterator[int]:
        yield 1

    async def later(self, *_: Any) -> int:
        return 1

    def wrong_number(self, a: Any, b: Any, c: Any) -> None: ...


class Generating:
    def __call__(self, *_: Any) -> Iterator[int]:
        yield 1


class Later:
    async def __call__(self, *_: Any) -> int:
        return 1


NOT_RUN = [
    *(generates, generates_later, partial(generates, 1), Methods().generates, Generating()),
    *(partial(partial(Methods().generates)), partial(Generating(), 1)),
]
NO_FUNCTIONS = [None, 5, "work", object()]
WRONG_NUMBERS = [wrong_number, Methods().wrong_number, lambda *, word: word]
COROUTINES = [later, partial(later, 1), Methods().later, Later(), partial(Later()), AsyncMock()]

QUERY = sa.select(Order)
SESSION = LockingSession()
ASYNC_SESSION = AsyncLockingSession(create_async_engine("sqlite+aiosqlite://"))
Taker = Callable[[Any], object]

SYNC: dict[str, Taker] = {
    "run_transaction": lambda fn: run_transaction(never, fn),
    "gate.run": lambda fn: DocumentGate().run(never, Order, 1, fn),
    "on_commit": SESSION.on_commit,
    "claim_each": lambda fn: claim_each(never, QUERY, sleep=fn),
    "defaults": lambda fn: SESSION.get_or_create_entity(Order, 1, defaults=fn),
}
ASYNC: dict[str, Taker] = {
    "async_run_transaction": lambda fn: asyncio.run(async_run_transaction(never, fn)),
    "gate.async_run": lambda fn: asyncio.run(DocumentGate().async_run(never, Order, 1, fn)),
    "async_claim_each": lambda fn: async_claim_each(never, QUERY, sleep=fn),
    "async on_commit": ASYNC_SESSION.on_commit,
    "first": lambda fn: two_at_once(fn, never),
    "second": lambda fn: two_at_once(never, fn),
    "async first": lambda fn: asyncio.run(async_two_at_once(fn, never)),
    "explore": lambda fn: explore(never, fn, before=never, invariant=never),
    "before": lambda fn: explore(never, never, before=fn, invariant=never),
}
TAKERS = {**SYNC, **ASYNC}
DECORATED: Taker = transactional(never)


def parametrized(takers: dict[str, Taker]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("take", takers.values(), ids=takers)


@parametrized({**TAKERS, "transactional": DECORATED})
@rows("function", NOT_RUN)
def test_a_generator_function_is_refused(take: Taker, function: Any) -> None:
    with pytest.raises(TypeError, match="is a generator function, and calling it runs nothing"):
        take(function)


@parametrized({**TAKERS, "transactional": DECORATED})
@rows("function", NO_FUNCTIONS)
def test_what_cannot_be_called_is_refused(take: Taker, function: Any) -> None:
    if function is None and take is TAKERS["defaults"]:
        return  # its default
    with pytest.raises(TypeError, match=r"must be a function.*, not "):
        take(function)


@parametrized(TAKERS)
@rows("function", WRONG_NUMBERS)
def test_another_number_of_arguments_is_refused(take: Taker, function: Any) -> None:
    with pytest.raises(TypeError, match=r"must be a function .*, and <?.* takes "):
        take(function)


@parametrized(SYNC)
@rows("function", COROUTINES)
def test_a_coroutine_function_is_refused_where_nothing_awaits_it(
    take: Taker, function: Any
) -> None:
    with pytest.raises(TypeError, match="is a coroutine function, which is not awaited here; use"):
        take(function)


def test_a_signature_that_was_put_on_a_function_counts() -> None:
    def function(_session: object) -> None: ...

    check_function("it", function, arguments=1)
    two = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in ("a", "b")]
    function.__signature__ = inspect.Signature(two)  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="takes"):
        check_function("it", function, arguments=1)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="markcoroutinefunction() is of Python 3.12")
def test_a_function_that_is_marked_as_a_coroutine_function_is_one() -> None:
    marked = getattr(inspect, "markcoroutinefunction", None)
    assert marked is not None
    with pytest.raises(TypeError, match="is a coroutine function"):
        check_function("it", marked(lambda _session: later(1)), arguments=1, instead="async_it")


class Made(Exception):  # no error: the check passed
    pass


def make() -> Any:
    raise Made


def with_session(function: Callable[..., object]) -> Callable[..., object]:
    """A decorator that passes more arguments than its wrapper receives."""

    @wraps(function)
    def call(*args: Any) -> object:
        return function(*args, 1, 2)

    return call


def one(session: Any, extra: int = 1, *, word: str = "") -> None: ...


FITTING = [one, partial(one, word="x"), with_session(wrong_number), Mock(), dict, print, Made]


@rows("function", FITTING)
def test_a_function_that_fits_is_taken(function: Any) -> None:
    with pytest.raises(Made):
        run_transaction(make, function)


@rows("function", COROUTINES)
def test_a_coroutine_function_is_taken_where_it_is_awaited(function: Any) -> None:
    with pytest.raises(Made):
        asyncio.run(async_run_transaction(make, function))
    DECORATED(function)


RETURNED: list[tuple[Callable[..., Any], str]] = [
    (lambda *_: later(), "returned a coroutine"),
    (lambda *_: generates(), "returned a generator"),
    (lambda *_: generates_later(), "returned a generator"),
]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    """Store an order in a file: an in-memory database cannot be locked."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/orders.db")
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(sa.insert(Order).values(id=1))
    yield engine
    engine.dispose()


@pytest.mark.parametrize(("function", "words"), RETURNED)
def test_what_nobody_awaits_is_found_where_it_is_returned(
    engine: sa.Engine, function: Any, words: str
) -> None:
    def factory() -> LockingSession:
        return LockingSession(engine)

    def commits() -> None:
        with factory() as session:
            session.on_commit(function)
            session.scalars(sa.select(Order)).all()
            session.commit()

    calls: list[Callable[[], object]] = [
        lambda: run_transaction(factory, function),
        lambda: DocumentGate().run(factory, Order, 1, function),
        transactional(factory)(function),
        commits,
    ]
    for call in calls:
        with pytest.raises(TypeError, match=f"{words}|returned an awaitable"):
            call()
    gc.collect()  # pytest would report a coroutine that was "never awaited"


@pytest.mark.parametrize(("function", "words"), RETURNED[1:])
def test_two_at_once_finds_it_too(function: Any, words: str) -> None:
    first, second = two_at_once(function, lambda: 1)
    with pytest.raises(TypeError, match=words):
        first.result()
    assert second.result() == 1


@pytest.mark.parametrize("function", [lambda *_: 1, lambda *_: generates()])
def test_what_cannot_be_awaited_is_found_where_it_is_returned(
    engine: sa.Engine, function: Any
) -> None:
    async def main() -> None:
        later_engine = create_async_engine(engine.url.set(drivername="sqlite+aiosqlite"))

        def factory() -> AsyncLockingSession:
            return AsyncLockingSession(later_engine)

        words = "must be a coroutine function|returned a generator"
        with pytest.raises(TypeError, match=words):
            await async_run_transaction(factory, function)
        with pytest.raises(TypeError, match=words):
            await DocumentGate().async_run(factory, Order, 1, function)
        await later_engine.dispose()

    asyncio.run(main())


def test_a_task_that_runs_by_itself_may_be_returned(engine: sa.Engine) -> None:
    async def main() -> None:
        tasks: list[asyncio.Future[int]] = []

        def start() -> asyncio.Future[int]:
            tasks.append(asyncio.ensure_future(later()))
            return tasks[0]

        with LockingSession(engine) as session:
            session.on_commit(start)
            session.scalars(sa.select(Order)).all()
            session.commit()
        assert await tasks[0] == 1

    asyncio.run(main())
