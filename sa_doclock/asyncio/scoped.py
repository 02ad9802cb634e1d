"""AsyncLockingScopedSession: an async_scoped_session that has the methods of AsyncLockingSession."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker

from ..checkout_info import Checkout
from ..keys import DocumentKey
from ..options import LockOptions
from ..scoped_session import checked_factory, documented_proxy
from ..session import CheckIn, LockingSession, Renew
from .session import AsyncLockingSession

P = ParamSpec("P")
S = TypeVar("S", bound=AsyncLockingSession)
T = TypeVar("T")

_NAMES = "AsyncLockingSession", "AsyncLockingScopedSession"


def _proxied(
    method: Callable[Concatenate[AsyncLockingSession, P], T],
) -> Callable[Concatenate[AsyncLockingScopedSession[Any], P], T]:
    @wraps(method)
    def call(self: AsyncLockingScopedSession[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = getattr(self(), method.__name__)(*args, **kwargs)
        return result

    return documented_proxy(call, *_NAMES)


def _awaited(
    method: Callable[Concatenate[AsyncLockingSession, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[AsyncLockingScopedSession[Any], P], Coroutine[Any, Any, T]]:
    @wraps(method)
    async def call(self: AsyncLockingScopedSession[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = await getattr(self(), method.__name__)(*args, **kwargs)
        return result

    return documented_proxy(call, *_NAMES)


def _forwarded(
    method: Callable[Concatenate[LockingSession, P], T],
) -> Callable[Concatenate[AsyncLockingScopedSession[Any], P], T]:
    """Forward a method that executes nothing.

    It is declared on LockingSession: pyright loses the overloads of a method that is decorated
    twice.
    """
    of_session = cast("Callable[Concatenate[AsyncLockingSession, P], Any]", method)
    return _proxied(of_session)


def _block(
    method: Callable[Concatenate[LockingSession, P], AbstractContextManager[T]],
) -> Callable[Concatenate[AsyncLockingScopedSession[Any], P], AbstractAsyncContextManager[T]]:
    block = cast("Callable[Concatenate[LockingSession, P], Any]", method)
    return _forwarded(block)


class AsyncLockingScopedSession(async_scoped_session[S]):
    """A :class:`sqlalchemy.ext.asyncio.async_scoped_session` with AsyncLockingSession's methods.

    See :class:`LockingScopedSession`.  ``await Session.remove()`` belongs at the end of each scope:
    the registry keeps the session of a task that has ended.

    :param session_factory: ``async_sessionmaker(engine, class_=AsyncLockingSession)``.
    :param scopefunc: a function whose result identifies the scope, such as
        ``asyncio.current_task``.
    :raises TypeError: ``scopefunc`` is missing, or the factory does not make AsyncLockingSessions.
    """

    def __init__(
        self, session_factory: async_sessionmaker[S], scopefunc: Callable[[], Any]
    ) -> None:
        self._make = checked_factory(
            session_factory, AsyncLockingSession, "AsyncLockingScopedSession", "async_sessionmaker"
        )
        if not callable(scopefunc):
            raise TypeError(f"scopefunc must be a function without arguments, not {scopefunc!r}")
        super().__init__(self._make, scopefunc)
        self.session_factory = session_factory

    def __call__(self, **kw: Any) -> S:
        """Return the current session; create it with these arguments if there is none."""
        if kw and not self.registry.has():
            self.registry.set(self._make(**kw))
            kw = {}
        return super().__call__(**kw)

    @property
    def held_locks(self) -> Mapping[DocumentKey, LockOptions]:
        """See :attr:`LockingSession.held_locks`."""
        return self().held_locks

    get_entity = _awaited(AsyncLockingSession.get_entity)
    get_one_entity = _awaited(AsyncLockingSession.get_one_entity)
    get_or_create_entity = _awaited(AsyncLockingSession.get_or_create_entity)
    lock = _awaited(AsyncLockingSession.lock)
    get_entities = _awaited(AsyncLockingSession.get_entities)
    get_document = _awaited(AsyncLockingSession.get_document)
    get_one_document = _awaited(AsyncLockingSession.get_one_document)
    get_documents = _awaited(AsyncLockingSession.get_documents)
    entity_set = _forwarded(LockingSession.entity_set)
    locked = _block(LockingSession.locked)
    locked_document = _block(LockingSession.locked_document)
    locked_documents = _block(LockingSession.locked_documents)
    lock_key = _awaited(AsyncLockingSession.lock_key)
    check_out = _awaited(AsyncLockingSession.check_out)
    take_over = _awaited(AsyncLockingSession.take_over)
    renew = cast(
        "Renew[Coroutine[Any, Any, Checkout]]", _awaited(cast("Any", AsyncLockingSession.renew))
    )
    check_in = cast(
        "CheckIn[Coroutine[Any, Any, None]]", _awaited(cast("Any", AsyncLockingSession.check_in))
    )
    checkout_of = _awaited(AsyncLockingSession.checkout_of)
    checkouts = _awaited(AsyncLockingSession.checkouts)
    save_changes = _awaited(AsyncLockingSession.save_changes)
    release_locks = _awaited(AsyncLockingSession.release_locks)
    on_commit = _proxied(AsyncLockingSession.on_commit)
    unguarded = _block(LockingSession.unguarded)
