"""@transactional: a function called without its session."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session as PlainSession
from sqlalchemy.orm import sessionmaker

from sa_doclock import (
    AsyncLockingSession,
    DeadlockDetected,
    LockingSession,
    LockMisuse,
    LockNotAvailable,
    async_run_transaction,
    run_transaction,
    transactional,
)
from tests.integration.asyncio.drivers import in_a_loop
from tests.integration.retry.counting import NAMES, Counted, deadlocks, own_logic
from tests.support.models import Customer
from tests.support.rows import rows

Run = Callable[..., list[Any]]
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

factory = sessionmaker(class_=LockingSession)
async_factory = async_sessionmaker(class_=AsyncLockingSession)


@transactional(factory, attempts=2)
def place(session: LockingSession, customer_id: int, *, remark: str = "none") -> str:
    """Place an order."""
    assert session.in_transaction()
    return f"{customer_id} {remark}"


@transactional(async_factory)
async def place_later(session: AsyncLockingSession, customer_id: int) -> str:
    """Place an order, sooner or later."""
    assert session.in_transaction()
    return f"{customer_id} later"


def test_it_is_called_without_the_session() -> None:
    said: str = place(7)  # mypy knows the type
    assert said == "7 none"
    assert place(customer_id=7, remark="soon") == "7 soon"


@in_a_loop
async def test_so_is_a_coroutine_function() -> None:
    said: str = await place_later(7)
    assert said == "7 later"
    assert await place_later(customer_id=8) == "8 later"


def test_it_keeps_its_name_and_docstring() -> None:
    assert (place.__name__, place.__doc__) == ("place", "Place an order.")
    assert place.__module__ == __name__
    assert place_later.__name__ == "place_later"
    assert inspect.iscoroutinefunction(place_later)
    assert not inspect.iscoroutinefunction(place)


def test_its_signature_is_that_of_the_call() -> None:
    assert (
        str(inspect.signature(place)) == "(customer_id: 'int', *, remark: 'str' = 'none') -> 'str'"
    )
    assert list(inspect.signature(place_later).parameters) == ["customer_id"]

    @transactional(factory)
    def any_number(*args: Any) -> int:
        return len(args)

    assert str(inspect.signature(any_number)) == "(*args: 'Any') -> 'int'"
    assert any_number(1, 2) == 3


@own_logic
def test_every_call_is_a_transaction_that_may_be_repeated(
    session_factory: sessionmaker[LockingSession], elsewhere: Run
) -> None:
    errors = deadlocks(2)

    @transactional(session_factory)
    def create(session: LockingSession, ident: int, name: str) -> int:
        session.add(Customer(id=ident, name=name))
        if errors:
            raise errors.pop()
        return ident

    assert (create(8, "h"), create(9, name="i")) == (8, 9)
    assert elsewhere(NAMES)[2:] == [(8, "h"), (9, "i")]


def test_the_arguments_count_for_every_call() -> None:
    runs: list[int] = []

    @transactional(factory, attempts=3, backoff=0, retry_not_available=True)
    def fail(_: LockingSession) -> None:
        runs.append(1)
        raise LockNotAvailable("held")

    for _ in range(2):
        with pytest.raises(LockNotAvailable, match="after 3 attempts"):
            fail()
    assert len(runs) == 6


def test_one_within_another_is_refused() -> None:
    @transactional(factory)
    def outer(_: LockingSession) -> str:
        return place(7)

    with pytest.raises(LockMisuse, match="call the function with the outer session"):
        outer()


def test_the_wrong_kind_of_session_is_reported_at_the_call() -> None:
    async def later(_: Any) -> None: ...

    def now(_: Any) -> None: ...

    with pytest.raises(TypeError, match="must make LockingSessions"):
        transactional(async_factory)(now)()

    @in_a_loop
    async def call() -> None:
        with pytest.raises(TypeError, match="must make AsyncLockingSessions"):
            await transactional(factory)(later)()

    call()


def test_what_cannot_take_a_session_is_reported_at_the_decoration() -> None:
    decorate: Any = transactional(factory)

    def without() -> None: ...

    def by_name(*, session: LockingSession) -> None: ...

    for function in (without, by_name):
        with pytest.raises(TypeError, match="must take the session as its first argument"):
            decorate(function)
    with pytest.raises(TypeError, match=r"the argument of @transactional\(session_factory\) must"):
        decorate(7)

    def bare(_: LockingSession) -> None: ...

    forgotten: Any = transactional
    with pytest.raises(TypeError, match=r"@transactional\(session_factory\)"):
        forgotten(bare)(7)  # "@transactional" without its parentheses


@pytest.mark.parametrize("name", ["self", "cls"])
def test_a_method_is_refused(name: str) -> None:
    scope: dict[str, Any] = {"transactional": transactional, "factory": factory}
    with pytest.raises(TypeError, match=f"would pass the session as its {name}"):
        exec(  # the class body raises, so that no tool sees a wrong class
            f"class Orders:\n    @transactional(factory)\n    def place({name}, session): ...\n",
            scope,
        )


def test_a_method_that_calls_its_object_otherwise_is_refused_when_it_is_called() -> None:
    # Typed as Any: mypy sees the wrong argument.
    synchronous: Decorator = transactional(cast("Any", factory))
    asynchronous: Decorator = transactional(cast("Any", async_factory))

    class Orders:
        @synchronous
        def place(this, session: Any) -> None: ...  # noqa: N805

        @classmethod
        @synchronous
        def of(kind, session: Any) -> None: ...  # noqa: N804

        @asynchronous
        async def later(this, session: Any) -> None: ...  # noqa: N805

    orders: Any = Orders()
    with pytest.raises(TypeError, match="would pass the session as its this"):
        orders.place(7)
    for owner in (orders, Orders):
        with pytest.raises(TypeError, match="would pass the session as its kind"):
            owner.of()

    @in_a_loop
    async def call() -> None:
        with pytest.raises(TypeError, match="would pass the session as its this"):
            await orders.later()

    call()


def test_a_static_method_is_a_function() -> None:
    class Orders:
        @staticmethod
        @transactional(factory)
        def place(session: LockingSession, customer_id: int) -> str:
            return f"{customer_id} {session.in_transaction()}"

    assert Orders.place(7) == Orders().place(7) == "7 True"
    assert Orders.place(Orders) == f"{Orders} True"  # type: ignore[arg-type]


@in_a_loop
async def test_a_coroutine_function_is_repeated_too() -> None:
    errors = deadlocks(9)

    @transactional(async_factory, attempts=3, backoff=0)
    async def fail(session: AsyncLockingSession) -> None:
        assert isinstance(session.sync_session, LockingSession)
        raise errors.pop(0)

    with pytest.raises(DeadlockDetected, match="made up, 2"):
        await fail()


# --------------------------------------------------------------------------------------------------
# Wrong arguments fail before anything is sent, with an error that names the argument.


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
    gc.collect()  # no coroutine is "never awaited", which pytest would report


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
