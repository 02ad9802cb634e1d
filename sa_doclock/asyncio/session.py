"""AsyncLockingSession: the methods of LockingSession, awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from functools import wraps
from inspect import isawaitable
from typing import Any, ParamSpec, TypeVar

from sqlalchemy import Select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.orm.interfaces import ORMOption
from sqlalchemy.util import await_only, greenlet_spawn

from ..lock_info import DocumentKey, LockWait
from ..monitoring import lock_waits
from ..options import LockOptions, LockTimeout
from ..session import LockingSession

T = TypeVar("T")
P = ParamSpec("P")


class AsyncLockingSession(AsyncSession):
    """A :class:`sqlalchemy.ext.asyncio.AsyncSession` that locks documents.

    Made by ``async_sessionmaker(engine, class_=AsyncLockingSession)``.  Each method is the
    one of :class:`LockingSession` with the same name, awaited.
    """

    sync_session_class: type[Session] = LockingSession

    @property
    def _locking(self) -> LockingSession:
        session = self.sync_session
        if not isinstance(session, LockingSession):
            raise TypeError(f"sync_session_class must be a LockingSession, not {type(session)!r}")
        return session

    async def _run(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run_sync(lambda _: method(*args, **kwargs))

    @property
    def held_locks(self) -> Mapping[DocumentKey, LockOptions]:
        """See :attr:`LockingSession.held_locks`."""
        return self._locking.held_locks

    async def get_entity(
        self,
        entity: type[T],
        ident: Any,
        lock: LockOptions = LockOptions.None_,
        *,
        lock_timeout: LockTimeout = None,
        options: Sequence[ORMOption] = (),
    ) -> T | None:
        """See :meth:`LockingSession.get_entity`.

        What the lock has made stale is read at its next use, which asyncio does not allow
        for attributes: give ``options=[selectinload(Order.lines)]``, or use AsyncAttrs.
        """
        locking = self._locking
        return await self._run(
            locking.get_entity, entity, ident, lock, lock_timeout=lock_timeout, options=options
        )

    async def get_one_entity(
        self,
        entity: type[T],
        ident: Any,
        lock: LockOptions = LockOptions.None_,
        *,
        lock_timeout: LockTimeout = None,
        options: Sequence[ORMOption] = (),
    ) -> T:
        """See :meth:`LockingSession.get_one_entity`."""
        locking = self._locking
        return await self._run(
            locking.get_one_entity, entity, ident, lock, lock_timeout=lock_timeout, options=options
        )

    async def get_entities(
        self,
        entity: type[T],
        idents: Iterable[Any],
        lock: LockOptions = LockOptions.None_,
        *,
        lock_timeout: LockTimeout = None,
        options: Sequence[ORMOption] = (),
    ) -> list[T]:
        """See :meth:`LockingSession.get_entities`."""
        locking = self._locking
        return await self._run(
            locking.get_entities, entity, idents, lock, lock_timeout=lock_timeout, options=options
        )

    async def get_document(
        self,
        entity: type[T],
        ident: Any,
        lock: LockOptions = LockOptions.None_,
        *,
        lock_timeout: LockTimeout = None,
        options: Sequence[ORMOption] = (),
    ) -> T | None:
        """See :meth:`LockingSession.get_document`.

        Under asyncio this is the way to read a document: every part can be reached afterwards
        without awaiting anything.
        """
        locking = self._locking
        return await self._run(
            locking.get_document, entity, ident, lock, lock_timeout=lock_timeout, options=options
        )

    async def get_documents(
        self,
        entity: type[T],
        idents: Iterable[Any],
        lock: LockOptions = LockOptions.None_,
        *,
        lock_timeout: LockTimeout = None,
        options: Sequence[ORMOption] = (),
    ) -> list[T]:
        """See :meth:`LockingSession.get_documents`."""
        locking = self._locking
        return await self._run(
            locking.get_documents, entity, idents, lock, lock_timeout=lock_timeout, options=options
        )

    def entity_set(
        self,
        entity: Any,
        lock: LockOptions = LockOptions.None_,
        *,
        lock_timeout: LockTimeout = None,
    ) -> Select[Any]:
        """See :meth:`LockingSession.entity_set`; not awaited, it only makes the statement."""
        return self._locking.entity_set(entity, lock, lock_timeout=lock_timeout)

    @asynccontextmanager
    async def locked(
        self,
        entity: type[T],
        ident: Any,
        lock: LockOptions = LockOptions.ForUpdate,
        *,
        lock_timeout: LockTimeout = None,
        options: Sequence[ORMOption] = (),
    ) -> AsyncIterator[T]:
        """See :meth:`LockingSession.locked`."""
        block = self._locking.locked(
            entity, ident, lock, lock_timeout=lock_timeout, options=options
        )
        async with self._run_block(block) as document:
            yield document

    @asynccontextmanager
    async def unguarded(self) -> AsyncIterator[None]:
        """See :meth:`LockingSession.unguarded`."""
        async with self._run_block(self._locking.unguarded()):
            yield

    @asynccontextmanager
    async def _run_block(self, block: AbstractContextManager[T]) -> AsyncIterator[T]:
        entered = await self._run(block.__enter__)
        try:
            yield entered
        except BaseException as error:
            await self._run(block.__exit__, type(error), error, error.__traceback__)
            raise
        else:
            await self._run(block.__exit__, None, None, None)

    def on_commit(self, function: Callable[[], Awaitable[object] | object]) -> None:
        """See :meth:`LockingSession.on_commit`; not awaited, the function is called later.

        It may be a coroutine function: the commit awaits what it returns.
        """
        if not callable(function):
            raise TypeError(f"on_commit() needs a function without arguments, not {function!r}")

        @wraps(function)
        def call() -> None:
            result = function()
            if isawaitable(result):
                await_only(result)

        self._locking.on_commit(call)

    async def lock_key(
        self,
        key: str,
        *,
        lock_timeout: LockTimeout = None,
        shared: bool = False,
        bind_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """See :meth:`LockingSession.lock_key`."""
        await self._run(
            self._locking.lock_key,
            key,
            lock_timeout=lock_timeout,
            shared=shared,
            bind_arguments=bind_arguments,
        )

    async def save_changes(self) -> None:
        """See :meth:`LockingSession.save_changes`."""
        await self._run(self._locking.save_changes)

    async def release_locks(self) -> None:
        """See :meth:`LockingSession.release_locks`."""
        await self._run(self._locking.release_locks)


async def async_lock_waits(bind: AsyncEngine | AsyncConnection) -> list[LockWait]:
    """See :func:`lock_waits`."""
    if not isinstance(bind, (AsyncEngine, AsyncConnection)):
        raise TypeError(f"an AsyncEngine or an AsyncConnection is needed, not {bind!r}")
    return list(await greenlet_spawn(lock_waits, bind.sync_engine))
