"""async_claim_each(): claim_each(), awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, TypeVar, overload

from sqlalchemy import Select
from sqlalchemy.util import await_only, greenlet_spawn

from ..claims import Claim, ClaimReport, Claims, OnError, check_factory, claims_of
from ..functions import call_checked, check_function
from ..options import LockTimeout
from ..session import LockingSession
from .session import AsyncLockingSession

T = TypeVar("T")


class AsyncClaim(Generic[T]):
    """A :class:`Claim` in an AsyncLockingSession: ``async with claim as row:``."""

    def __init__(self, claim: Claim[T], session: AsyncLockingSession) -> None:
        self._claim = claim
        self.key = claim.key
        self.session = session

    async def __aenter__(self) -> T:
        return await greenlet_spawn(self._claim.__enter__)

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        return await greenlet_spawn(self._claim.__exit__, kind, error, traceback)


class AsyncSessions:
    """Creates the sessions of the claims, and keeps the latest one for the user."""

    latest: AsyncLockingSession

    def __init__(
        self, factory: Callable[[], AsyncLockingSession], caller: str = "async_claim_each"
    ) -> None:
        self._factory, self._caller = factory, caller

    def __call__(self) -> LockingSession:
        """Return the session inside a new AsyncLockingSession."""
        session = self._factory()
        if not isinstance(session, AsyncLockingSession):
            raise TypeError(
                f"{self._caller}() needs a factory of sessions such as async_sessionmaker("
                f"engine, class_=AsyncLockingSession); this one makes a {type(session).__name__}"
            )
        self.latest = session
        return session.sync_session  # type: ignore[return-value]  # the loop checks it


class AsyncClaims(Generic[T]):
    """The asynchronous iterator that async_claim_each() returns, with a report.

    An ``async for`` that you leave early gives its rows back soon after, when the event loop closes
    the generator; :meth:`aclose`, and ``async with async_claim_each(...) as claims:``, do so before
    they return.
    """

    def __init__(self, claims: Claims[T], sessions: AsyncSessions) -> None:
        self._claims, self._sessions = claims, sessions

    @property
    def report(self) -> ClaimReport:
        """The results so far; you can read them at any time."""
        return self._claims.report

    async def __aiter__(self) -> AsyncIterator[AsyncClaim[T]]:
        async with self:
            while (claim := await self._next()) is not None:
                yield claim

    async def __anext__(self) -> AsyncClaim[T]:
        claim = await self._next()
        if claim is None:
            raise StopAsyncIteration
        return claim

    async def _next(self) -> AsyncClaim[T] | None:
        claim = await greenlet_spawn(next, self._claims, None)
        return None if claim is None else AsyncClaim(claim, self._sessions.latest)

    async def aclose(self) -> None:
        """See :meth:`Claims.close`."""
        await greenlet_spawn(self._claims.close)

    async def __aenter__(self) -> AsyncClaims[T]:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        await greenlet_spawn(self._claims.__exit__, kind, error, traceback)


@overload
def async_claim_each(
    session_factory: Callable[[], AsyncLockingSession],
    statement: Select[tuple[T]],  # SQLAlchemy 2.0
    *,
    limit: int | None = ...,
    order_by: Any = ...,
    lock_timeout: LockTimeout = ...,
    on_error: OnError = ...,
    until_empty: bool = ...,
    batch: int = ...,
    one_per: Any = ...,
    attempts: int = ...,
    sleep: Callable[[float], Awaitable[object]] = ...,
) -> AsyncClaims[T]: ...


@overload
def async_claim_each(
    session_factory: Callable[[], AsyncLockingSession],
    statement: Select[T],  # SQLAlchemy 2.1
    *,
    limit: int | None = ...,
    order_by: Any = ...,
    lock_timeout: LockTimeout = ...,
    on_error: OnError = ...,
    until_empty: bool = ...,
    batch: int = ...,
    one_per: Any = ...,
    attempts: int = ...,
    sleep: Callable[[float], Awaitable[object]] = ...,
) -> AsyncClaims[T]: ...


def async_claim_each(
    session_factory: Callable[[], AsyncLockingSession],
    statement: Select[Any],
    *,
    limit: int | None = None,
    order_by: Any = None,
    lock_timeout: LockTimeout = None,
    on_error: OnError = "raise",
    until_empty: bool = False,
    batch: int = 1,
    one_per: Any = None,
    attempts: int = 10,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> AsyncClaims[Any]:
    """Return an asynchronous iterator of claims: each row goes to one worker alone.

    See :func:`claim_each`; all arguments are the same.

    Example::

        jobs = select(Job).where(Job.state == "new")
        async for claim in async_claim_each(AsyncSession, jobs):
            async with claim as job:
                job.state = "done"

    :param session_factory: makes new :class:`AsyncLockingSession` objects, as
        ``async_sessionmaker``.
    :param sleep: a coroutine function that waits for the given seconds.
    """
    check_factory(session_factory)
    check_function("sleep", sleep, "of seconds", arguments=1)
    sessions = AsyncSessions(session_factory)
    claims = claims_of(
        sessions,
        statement,
        limit=limit,
        order_by=order_by,
        lock_timeout=lock_timeout,
        on_error=on_error,
        until_empty=until_empty,
        batch=batch,
        one_per=one_per,
        attempts=attempts,
        sleep=lambda seconds: await_only(call_checked("sleep", True, sleep, seconds)),
    )
    return AsyncClaims(claims, sessions)
