"""async_run_transaction(): run_transaction(), awaited; retry.py decides which errors to retry."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..functions import check_function, check_result
from ..retry import Attempts, Policy, RetryOn, checked_policy, checked_session
from .session import AsyncLockingSession

S = TypeVar("S", bound=AsyncLockingSession)
T = TypeVar("T")


async def async_run_transaction(
    session_factory: Callable[[], S],
    fn: Callable[[S], Awaitable[T]],
    *,
    attempts: int = 5,
    backoff: float = 0.05,
    max_backoff: float = 2.0,
    retry_not_available: bool = False,
    retry_on: RetryOn | None = None,
    commit_outcome: bool = False,
) -> T:
    """Run ``await fn(session)`` in a separate transaction, commit, and return its result.

    ``fn`` is a coroutine function of an :class:`AsyncLockingSession`.  For the other parameters and the
    errors see :func:`run_transaction`.

    A cancelled task is not run again: the session is closed, and CancelledError propagates.

    Example::

        async def add_one(session):
            order = await session.get_one_entity(Order, 42, LockOptions.ForUpdate)
            order.total += 1

        await async_run_transaction(AsyncSession, add_one, attempts=3)

    :param session_factory: ``async_sessionmaker(engine, class_=AsyncLockingSession)``.
    """
    policy = checked_policy(
        *(session_factory, attempts, backoff, max_backoff, retry_not_available, retry_on),
        commit_outcome,
    )
    check_function("fn", fn, "of the session", arguments=1)
    return await run_checked(policy, session_factory, fn)


async def run_checked(
    policy: Policy, session_factory: Callable[[], S], fn: Callable[[S], Awaitable[T]]
) -> T:
    """Run :func:`async_run_transaction` with checked arguments."""
    from tenacity import AsyncRetrying  # noqa: PLC0415  # as in retry.py

    attempts_of_call = Attempts(policy)

    async def attempt() -> T:
        session = session_factory()
        own = isinstance(session, AsyncLockingSession)
        locking = checked_session(
            session,
            session.sync_session if own else None,
            "async_sessionmaker",
            "AsyncLockingSession",
        )
        async with session, session.begin():
            with attempts_of_call.attempt(locking):
                awaitable = fn(session)
                check_result("fn", fn, awaitable, awaited=True)
                result = await awaitable
                check_result("fn", fn, result)
                if session.in_transaction():
                    await session.commit()
        return result

    return await AsyncRetrying(**attempts_of_call.retrying_arguments())(attempt)
