"""AsyncLockingSession: the methods of LockingSession, awaited; the session inside is always a LockingSession."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from functools import partial, wraps
from inspect import cleandoc, isawaitable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from sqlalchemy.exc import MissingGreenlet
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.util import await_only, greenlet_spawn

from ..checkout_info import Checkout
from ..core.session import HeldLocks
from ..functions import check_function, check_result
from ..keys import DocumentKey
from ..options import LockOptions
from ..session import CheckIn, LockingSession, Renew, with_locks
from ..tools.monitoring import lock_waits
from ..wait_info import LockWait


def locking_class_of(cls: type[AsyncSession]) -> type[Session]:
    """Return the ``sync_session_class`` of this class and all its bases, combined."""
    if "sync_session_class" in vars(cls):  # the class sets it
        return _locking_class(cls.sync_session_class)
    said = (vars(base).get("sync_session_class") for base in cls.__mro__)
    bases: list[type[Session]] = []
    for inside in filter(None, said):
        if not any(issubclass(base, inside) for base in bases):
            bases.append(inside)
    # Ours last: the other classes' methods call it by super().
    bases.sort(key=lambda base: issubclass(base, LockingSession))
    return bases[0] if len(bases) == 1 else type("Session", tuple(bases), {})


def locking_factory(inside: Any) -> Any:
    """Return the factory of the session inside: a class, a sessionmaker, or another function."""
    if isinstance(inside, type) and issubclass(inside, Session):
        return _locking_class(inside)
    if isinstance(inside, sessionmaker) and not issubclass(inside.class_, LockingSession):
        # Advanced Alchemy listens to this class: as a base of ours, it passes events on.
        return partial(_make, inside, _locking_class(inside.class_))
    return inside


def _make(maker: sessionmaker[Session], cls: Callable[..., Session], **kw: Any) -> Session:
    info = {**(maker.kw.get("info") or {}), **(kw.get("info") or {})}
    return cls(**{**maker.kw, **kw, "info": info})


def _locking_class(inside: Any) -> type[Session]:
    return with_locks(inside, LockingSession)


F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
P = ParamSpec("P")


def _awaited(
    method: Callable[Concatenate[LockingSession, P], T], note: str = ""
) -> Callable[Concatenate[AsyncLockingSession, P], Coroutine[Any, Any, T]]:
    @wraps(method)
    async def call(self: AsyncLockingSession, /, *args: P.args, **kwargs: P.kwargs) -> T:
        own = getattr(self._locking, method.__name__)  # a subclass may override it
        return await self.run_sync(lambda _: own(*args, **kwargs))

    return _documented(call, note=note)


def _forwarded(
    method: Callable[Concatenate[LockingSession, P], T],
) -> Callable[Concatenate[AsyncLockingSession, P], T]:
    """Return this method, which only creates a statement, for an AsyncLockingSession.

    It takes no other argument: with one, mypy loses the overloads.
    """

    @wraps(method)
    def call(self: AsyncLockingSession, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = getattr(self._locking, method.__name__)(*args, **kwargs)
        return result

    return _documented(call, "not awaited: it only makes the statement")


def _awaited_block(
    method: Callable[Concatenate[LockingSession, P], AbstractContextManager[T]],
) -> Callable[Concatenate[AsyncLockingSession, P], AbstractAsyncContextManager[T]]:
    @wraps(method)
    def block(
        self: AsyncLockingSession, /, *args: P.args, **kwargs: P.kwargs
    ) -> AbstractAsyncContextManager[T]:
        own = getattr(self._locking, method.__name__)(*args, **kwargs)  # wrong arguments raise here
        return entered(own)

    return _documented(block, "by ``async with``")


@asynccontextmanager
async def entered(block: AbstractContextManager[T]) -> AsyncIterator[T]:
    """Return a block for ``async with``, whose begin and end may await in separate greenlets."""
    found = await greenlet_spawn(block.__enter__)
    try:
        yield found
    except BaseException as error:
        await greenlet_spawn(block.__exit__, type(error), error, error.__traceback__)
        raise
    else:
        await greenlet_spawn(block.__exit__, None, None, None)


def _documented(call: F, how: str = "awaited", note: str = "") -> F:
    says = f"As :meth:`LockingSession.{call.__name__}`, {how}."
    call.__doc__ = "\n\n".join(map(cleandoc, (says, call.__doc__ or "", note))).rstrip()
    call.__module__, call.__qualname__ = __name__, f"AsyncLockingSession.{call.__name__}"
    return call


class AsyncLockingSession(AsyncSession):
    """A :class:`sqlalchemy.ext.asyncio.AsyncSession` that locks documents.

    Make it with ``async_sessionmaker(engine, class_=AsyncLockingSession)``.  Each method works like
    the method of :class:`LockingSession` with the same name, awaited; each block is used by ``async
    with``.

    :param sync_session_class: the class of the session inside, or a ``sessionmaker``.  A Session
        class that is not a LockingSession is combined with it, even if a base class names it.
    :raises TypeError: the session inside is still not a LockingSession.
    """

    sync_session_class: type[Session] = LockingSession

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make a LockingSession of the ``sync_session_class`` of the class and its bases."""
        super().__init_subclass__(**kwargs)
        cls.sync_session_class = locking_class_of(cls)

    def __init__(
        self,
        bind: AsyncConnection | AsyncEngine | None = None,
        *,
        sync_session_class: type[Session] | None = None,
        **kw: Any,
    ) -> None:
        if sync_session_class is not None:
            kw["sync_session_class"] = locking_factory(sync_session_class)
        super().__init__(bind, **kw)
        if not isinstance(self.sync_session, LockingSession):
            raise TypeError(
                f"sync_session_class must make a LockingSession, not {type(self.sync_session)!r}"
            )

    @property
    def _locking(self) -> LockingSession:
        assert isinstance(self.sync_session, LockingSession)
        return self.sync_session

    @property
    def held_locks(self) -> Mapping[DocumentKey, LockOptions]:
        """The documents that this transaction holds: ``{(Order, (42,)): LockOptions.ForUpdate}``.

        Read-only.  Empty after commit, rollback and close, and when the connection is lost.  After
        prepare() it has only the locks that every database keeps until the commit.

        After ``text()``, DDL and other statements that may have ended the transaction, a LockingSession
        asks the server.  Under asyncio a property cannot: it returns the last known locks until the next
        flush, lock or commit.

        Example::

            await session.get_one_entity(Order, 42, LockOptions.ForUpdate)
            assert session.held_locks == {(Order, (42,)): LockOptions.ForUpdate}

        As :attr:`LockingSession.held_locks`.
        """
        return HeldLocks(self._locking)

    get_entity = _awaited(
        LockingSession.get_entity,
        """
        Attributes that the lock made stale load at their next use, which asyncio does not allow
        for attributes: give ``options=[selectinload(Order.lines)]``, or use AsyncAttrs.
        """,
    )
    get_one_entity = _awaited(LockingSession.get_one_entity)
    get_or_create_entity = _awaited(LockingSession.get_or_create_entity)
    lock = _awaited(LockingSession.lock)
    get_entities = _awaited(LockingSession.get_entities)
    get_document = _awaited(
        LockingSession.get_document,
        """
        Under asyncio this is the way to read a document: every part can be reached afterwards
        without awaiting anything.
        """,
    )
    get_one_document = _awaited(LockingSession.get_one_document)
    get_documents = _awaited(LockingSession.get_documents)
    locked = _awaited_block(LockingSession.locked)
    locked_document = _awaited_block(LockingSession.locked_document)
    locked_documents = _awaited_block(LockingSession.locked_documents)
    unguarded = _awaited_block(LockingSession.unguarded)
    lock_key = _awaited(LockingSession.lock_key)
    check_out = _awaited(LockingSession.check_out)
    take_over = _awaited(LockingSession.take_over)
    renew = cast("Renew[Coroutine[Any, Any, Checkout]]", _awaited(LockingSession.renew))
    """Renew a check-out: its lease begins again now.

    As :meth:`LockingSession.renew`, awaited: ``renew(checkout)``, or ``renew(Order, 42, epoch)``.

    :raises LockMisuse: as :meth:`check_out`.
    """
    check_in = cast("CheckIn[Coroutine[Any, Any, None]]", _awaited(LockingSession.check_in))
    """End a check-out, so that the document is free.

    As :meth:`LockingSession.check_in`, awaited: ``check_in(checkout)``, or ``check_in(Order, 42, epoch)``.

    :raises LockMisuse: as :meth:`check_out`.
    """
    checkout_of = _awaited(LockingSession.checkout_of)
    checkouts = _awaited(LockingSession.checkouts)
    save_changes = _awaited(LockingSession.save_changes)
    release_locks = _awaited(LockingSession.release_locks)

    entity_set = _forwarded(LockingSession.entity_set)

    def on_commit(self, function: Callable[[], Awaitable[object] | object]) -> None:
        """Call the function after this transaction has been committed and its locks are released.

        As :meth:`LockingSession.on_commit`, not awaited.  The function may be a coroutine
        function: the commit awaits its result.

        The functions run in the order in which they were registered, after the outermost commit.  A
        rollback drops them; a rollback to a savepoint drops those registered since.  If no transaction
        has begun yet, they wait for the next commit.  A function that reads the database needs a
        session of its own, because this one is still committing.

        If a function fails, the others still run, even after a KeyboardInterrupt, a SystemExit or a
        cancellation.  The commit then raises the first of these, or else the first error; the logger
        ``sa_doclock`` logs the others.  The changes stay committed.

        If an interruption or a failing listener comes between the commit and the calls, the functions
        run at the next use of the session, or when it is closed.

        Not promised: a process that dies between the commit and the call does not call the function.
        In a session that has joined the transaction of a Connection, the outermost commit is the
        session's own.

        Example::

            order = await session.get_one_entity(Order, 42, LockOptions.ForUpdate)
            order.total += 1
            session.on_commit(lambda: print("order 42 was saved"))
            await session.commit()

        Nor is the result awaited if the committing coroutine is closed rather than cancelled.  If the
        next use of an interrupted session is not awaited, such as ``add()``, the result is awaited in a
        task of its own.

        :raises TypeError: not a function.
        """
        name = "the argument of on_commit()"
        check_function(name, function, "without arguments", arguments=0)

        @wraps(function, updated=())
        def call() -> None:
            result = function()
            if not isawaitable(result):
                check_result(name, function, result)
                return
            if _may_await():
                await_only(result)
            else:  # an interruption left it to a method that is not awaited
                _run_in_task(result)

        self._locking.on_commit(call)


def _may_await() -> bool:
    try:
        await_only(_nothing())  # closes the coroutine if it cannot await
    except MissingGreenlet:
        return False
    return True


async def _nothing() -> None:
    pass


# Threads: add() and discard() of a set are atomic, even without a GIL; each loop has its own tasks.
_tasks: set[asyncio.Task[object]] = set()
"""Tasks that nobody awaits; the event loop itself does not keep them alive."""


def _run_in_task(awaitable: Awaitable[object]) -> None:
    async def run() -> object:
        return await awaitable

    task = asyncio.get_running_loop().create_task(run())
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


async def async_lock_waits(bind: AsyncEngine | AsyncConnection) -> list[LockWait]:
    """Return the waits for locks at this moment: :func:`lock_waits`, awaited.

    Example::

        for wait in await async_lock_waits(async_engine):
            print(wait)

    :raises LockNotSupported: SQLite, which has no server to ask; or the account lacks a
        privilege, which the text names.
    :raises TypeError: neither an AsyncEngine nor an AsyncConnection.
    """
    if not isinstance(bind, (AsyncEngine, AsyncConnection)):
        raise TypeError(
            f"async_lock_waits() needs an AsyncEngine or an AsyncConnection, not {bind!r}"
        )
    return list(await greenlet_spawn(lock_waits, bind.sync_engine))
