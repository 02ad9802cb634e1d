"""Wrong arguments are refused before anything is sent, by a sentence that names the argument."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session as PlainSession
from sqlalchemy.orm import sessionmaker

from sa_doclock import (
    AsyncLockingSession,
    LockingSession,
    async_run_transaction,
    run_transaction,
    transactional,
)
from tests.integration.asyncio.drivers import in_a_loop
from tests.integration.retry.counting import Counted
from tests.support.rows import rows


async def asynchronous(_: Any) -> int:
    return 1


def generates(_: Any) -> Iterator[int]:
    yield 1


NAN, INFINITE = float("nan"), float("inf")

WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"attempts": 0}, ValueError, "attempts must be 1 or more, not 0"),
    ({"attempts": -1}, ValueError, "attempts must be 1 or more, not -1"),
    ({"attempts": True}, TypeError, "attempts must be a whole number, not True"),
    ({"attempts": 2.0}, TypeError, "attempts must be a whole number, not 2.0"),
    ({"attempts": None}, TypeError, "attempts must be a whole number"),
    ({"backoff": -0.1}, ValueError, "backoff must be zero or more seconds, not -0.1"),
    ({"backoff": NAN}, ValueError, "backoff must be zero or more seconds, not nan"),
    ({"backoff": INFINITE}, ValueError, "backoff must be zero or more seconds, not inf"),
    ({"backoff": "1"}, TypeError, "backoff must be a number of seconds, not '1'"),
    ({"backoff": True}, TypeError, "backoff must be a number of seconds, not True"),
    ({"max_backoff": -1}, ValueError, "max_backoff must be zero or more"),
    ({"max_backoff": NAN}, ValueError, "max_backoff must be zero or more"),
    ({"max_backoff": None}, TypeError, "max_backoff must be a number"),
    ({"retry_not_available": 1}, TypeError, "retry_not_available must be True or False, not 1"),
    ({"retry_on": int}, TypeError, "retry_on must name subclasses of Exception, and <class 'int'>"),
    (
        {"retry_on": KeyboardInterrupt},
        TypeError,
        "subclasses of Exception, and .*Interrupt'> is not",
    ),
    ({"retry_on": (LookupError, int)}, TypeError, "subclasses of Exception, and <class 'int'> is"),
    ({"retry_on": ((LookupError,),)}, TypeError, "subclasses of Exception, and .* is not one"),
    ({"retry_on": LookupError()}, TypeError, "retry_on must be a function of the error, an exc"),
    ({"retry_on": [LookupError]}, TypeError, "retry_on must be a function of the error, an exc"),
    ({"retry_on": "LookupError"}, TypeError, "an exception class, or a tuple of classes, not 'Lo"),
    ({"retry_on": True}, TypeError, "an exception class, or a tuple of classes, not True"),
    ({"retry_on": lambda: True}, TypeError, "retry_on must be a function of the error, .* takes"),
    ({"retry_on": lambda a, b: a is b}, TypeError, "takes .*missing a required argument: 'b'"),
    ({"retry_on": asynchronous}, TypeError, "retry_on is a coroutine function, .* use a plain f"),
    ({"retry_on": generates}, TypeError, "retry_on is a generator function"),
]
each_wrong = rows(("how", "kind", "words"), WRONG, ids=str)


def never() -> LockingSession:
    raise AssertionError("a session was opened")


@each_wrong
def test_an_argument(how: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        run_transaction(never, Counted(), **how)


@each_wrong
def test_an_argument_of_the_decorator(
    how: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        transactional(never, **how)


@each_wrong
@in_a_loop
async def test_an_argument_of_the_twin(
    how: dict[str, Any], kind: type[Exception], words: str
) -> None:
    make: Any = never
    with pytest.raises(kind, match=words):
        await async_run_transaction(make, asynchronous, **how)


FUNCTIONS: list[tuple[Any, str]] = [
    (None, "fn must be a function of the session, not None"),
    ("place", "fn must be a function of the session, not 'place'"),
    (
        asynchronous,
        "fn is a coroutine function, which is not awaited here; use async_run_transaction",
    ),
    (generates, "fn is a generator function, and calling it runs nothing"),
]


@rows(("fn", "words"), FUNCTIONS)
def test_a_function(fn: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        run_transaction(never, fn)


def test_a_coroutine_comes_of_what_did_not_look_like_it() -> None:
    factory = sessionmaker(class_=LockingSession)
    fn: Any = lambda session: asynchronous(session)  # noqa: E731, PLW0108
    with pytest.raises(TypeError, match="fn returned a coroutine"):
        run_transaction(factory, fn)
    gc.collect()  # nor is it left to be "never awaited", which pytest would tell


@in_a_loop
async def test_a_function_for_the_twin() -> None:
    make: Any = AsyncLockingSession
    fn: Any = Counted()
    with pytest.raises(TypeError, match="fn must be a coroutine function"):
        await async_run_transaction(make, fn)
    with pytest.raises(TypeError, match="fn must be a function of the session, not 1"):
        await async_run_transaction(make, 1)  # type: ignore[arg-type]


async def makes_later() -> LockingSession:
    return LockingSession()


FACTORIES: list[Any] = [
    sessionmaker(),
    PlainSession,
    AsyncLockingSession,
    sessionmaker(class_=LockingSession).begin,
    makes_later,
    lambda: None,
]


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_factory_of_something_else(factory: Callable[[], Any]) -> None:
    fn = Counted()
    with pytest.raises(TypeError, match=r"must make LockingSessions, as sessionmaker\(engine, cl"):
        run_transaction(factory, fn)
    assert fn.runs == 0


@pytest.mark.parametrize("factory", [AsyncSession, LockingSession, makes_later, lambda: None])
def test_a_factory_of_something_else_for_the_twin(factory: Callable[[], Any]) -> None:
    @in_a_loop
    async def run() -> None:
        with pytest.raises(TypeError, match="must make AsyncLockingSessions, as async_sessionm"):
            await async_run_transaction(factory, asynchronous)

    run()


@pytest.mark.parametrize("factory", [None, LockingSession()])
def test_no_factory(factory: Any) -> None:
    with pytest.raises(TypeError, match="session_factory must be a function, not "):
        run_transaction(factory, Counted())
    with pytest.raises(TypeError, match="session_factory must be a function, not "):
        transactional(factory)
