"""@transactional: a function that is called without its session."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import pytest
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import sessionmaker

from sa_doclock import (
    AsyncLockingSession,
    DeadlockDetected,
    LockingSession,
    LockMisuse,
    LockNotAvailable,
    transactional,
)
from tests.integration.asyncio.drivers import in_a_loop
from tests.integration.retry.counting import NAMES, deadlocks, own_logic
from tests.support.models import Customer

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
