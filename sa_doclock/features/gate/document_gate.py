"""DocumentGate: sessions of one process that want the same document queue before they connect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from typing import Any, Final, Literal, TypeVar

from sqlalchemy import update
from sqlalchemy.orm import Mapper

from ...checkout_info import Checkout
from ...core.documents import document_key, identity_of, mapper_of
from ...core.ledger import place_of
from ...functions import call_checked, check_function
from ...options import LockOptions, LockTimeout, check_positive, check_wait
from .combined import CombinedCommits
from .combined_turn import Call, new_session

_KNOWN: Final = frozenset({"sa_doclock", "sqlalchemy"})

SecondSession = Literal["refuse", "allow"]
S = TypeVar("S")
D = TypeVar("D")
R = TypeVar("R")


class DocumentGate:
    """A queue for each document, in front of the connection pool, for the sessions of a process.

    ``sessionmaker(engine, class_=LockingSession, gate=DocumentGate())``, and in the same way
    ``async_sessionmaker(engine, class_=AsyncLockingSession, ...)``.  Without a gate, each session
    that waits for a document keeps a connection.  With it, one session of a document's queue waits
    at the server, and the others wait here, in order of arrival.  They also take the database's
    lock, which excludes other processes.  Only a transaction's first lock queues, by key or by
    ``lock_key()``; see docs/gate.md.  ``lock_timeout`` limits both waits together.

    :param next_waits_at_server: True: when a lock is granted, the next session of the queue goes on
        to the server and waits there, with a connection, so that no time is lost.  False: it waits
        here until the transaction has ended, and the document uses one connection.
    :param second_session: ``"refuse"``: if a task or thread holds a lock in one session and needs a
        connection in another one of the same gate and pool, it gets :class:`LockMisuse` at once:
        enough of them would exhaust the pool and wait for each other, unseen by the database.
        ``"allow"`` permits it.
    :param combine: the largest number of functions in one transaction of :meth:`run`.
    :raises TypeError: ``next_waits_at_server`` is not a bool; ``combine`` is not an integer.
    :raises ValueError: ``second_session`` is unknown; ``combine`` is less than 1.
    """

    def __init__(
        self,
        *,
        next_waits_at_server: bool = True,
        second_session: SecondSession = "refuse",
        combine: int = 50,
    ) -> None:
        if not isinstance(next_waits_at_server, bool):
            raise TypeError(
                f"next_waits_at_server must be True or False, not {next_waits_at_server!r}"
            )
        if second_session not in ("refuse", "allow"):
            raise ValueError(f'second_session must be "refuse" or "allow", not {second_session!r}')
        self.next_waits_at_server = next_waits_at_server
        self.refuses_second_session = second_session == "refuse"
        self._queues = CombinedCommits(check_positive("combine", combine))

    @property
    def waiting(self) -> int:
        """The number of sessions, and of functions of :meth:`run`, that are waiting."""
        return self._queues.waiting

    def run(
        self,
        session_factory: Callable[[], S],
        entity: type[D],
        ident: Any,
        function: Callable[[S, D], R],
        *,
        lock_timeout: LockTimeout = None,
        version: Any = None,
        checkout: Checkout | int | None = None,
    ) -> R:
        """Return ``function(session, document)``, saved together with others' functions.

        Callers in this process that name the same document and the same session factory form a
        queue.  The first one opens a session, locks the document ForUpdate, loads it with its
        parts, and runs the waiting functions, in order of arrival, on this one document.  It
        flushes once and commits once.  Then all callers get their results.

        **A function may be called more than once**, as by :func:`run_transaction`; its changes are
        saved once.  So it must change nothing outside its session and its document.  It sends
        messages by ``session.on_commit()``, which calls them once, after the commit.  It may run in
        another thread, in the context (contextvars) of its caller.  While it waits, so does the
        queue.  docs/gate.md says what happens when it fails.

        Example::

            def add_one(session, order):
                order.total += 1
                return order.total

            total = gate.run(Session, Order, 42, add_one)

        :param session_factory: makes new :class:`LockingSession` objects, as ``sessionmaker``.
        :param ident: the primary key, as for :meth:`LockingSession.get_entity`.
        :param lock_timeout: seconds (or a timedelta) within which the function must begin: for the
            queue and the lock together.  None: the limits of the session and the server.
        :param version: as for :meth:`LockingSession.get_entity`.  It is compared when this
            function's turn comes, after the changes of earlier functions.
        :param checkout: as for :meth:`LockingSession.get_entity`, for this caller only.
        :raises Exception: the function's error; nothing of it is saved.  Or the error of the
            commit: all callers of the transaction get it.
        :raises LockNotAvailable: the function did not begin in time, and will not begin.
        :raises StaleDocument: the caller has seen another version; or an earlier function in the
            same transaction changed the document.
        :raises CheckedOut: the document is checked out, and not by this caller.
        :raises CheckoutLost: the check-out that the caller names has ended.
        :raises CommitUnknown: the thread that committed was interrupted, or another function ended
            the transaction: look whether the change is there before you run it again.
        :raises LockMisuse: the function called commit(), rollback() or close(), or gate.run().
        :raises sqlalchemy.exc.NoResultFound: there is no such document.
        :raises TypeError: the factory makes no LockingSessions; no function, or a coroutine function.
        """
        given = session_factory, entity, ident, function, lock_timeout, version, checkout
        return self._queues.serve(self._call(given))  # type: ignore[no-any-return]

    async def async_run(
        self,
        session_factory: Callable[[], S],
        entity: type[D],
        ident: Any,
        function: Callable[[S, D], Awaitable[R]],
        *,
        lock_timeout: LockTimeout = None,
        version: Any = None,
        checkout: Checkout | int | None = None,
    ) -> R:
        """Do :meth:`run` under asyncio: the function is a coroutine function.

        The functions run in a task of their own, so the cancellation of a caller does not affect the
        others.  A caller that is cancelled before its function begins withdraws it.  Later, the function
        is saved as if its caller were still there.

        Example::

            async def add_one(session, order):
                order.total += 1
                return order.total

            total = await gate.async_run(AsyncSession, Order, 42, add_one)
        """
        given = session_factory, entity, ident, function, lock_timeout, version, checkout
        call = self._call(given, asyncio.get_running_loop())
        return await self._queues.async_serve(call)  # type: ignore[no-any-return]

    def _call(self, given: tuple[Any, ...], loop: asyncio.AbstractEventLoop | None = None) -> Call:
        session_factory, entity, ident, function, lock_timeout, version, checkout = given
        name = "the function of gate.run()" if loop is None else "the function of gate.async_run()"
        instead = "gate.async_run()" if loop is None else ""
        what = "of the session and the document"
        check_function(name, function, what, arguments=2, instead=instead)
        if not callable(session_factory) or hasattr(session_factory, "registry"):
            raise TypeError(
                f"gate.run() needs a factory of new sessions, such as a sessionmaker, not {session_factory!r}"
            )
        mapper, seconds = mapper_of(entity), None
        document = document_key(mapper, identity_of(mapper, ident))
        if lock_timeout is not None:
            seconds = check_wait(LockOptions.ForUpdate, lock_timeout)[1] or 0.0
        return Call(
            key=(CombinedCommits, loop, session_factory, _place(session_factory, mapper), document),
            shared=False,
            next_may_follow=self.next_waits_at_server,
            session_factory=session_factory,
            entity=entity,
            ident=ident,
            function=partial(call_checked, name, loop is not None, function),
            seconds=seconds,
            is_task=loop is not None,
            version=version,
            checkout=checkout,
        )

    def __repr__(self) -> str:
        return f"<DocumentGate: {self.waiting} waiting, {len(self._queues.documents)} documents>"


def _place(factory: Any, mapper: Mapper[Any]) -> object:
    """Return where this caller's sessions have the rows: the program may choose by a ContextVar.

    None for a sessionmaker of a class in which no code of the program chooses.
    """
    if hasattr(factory, "kw"):
        made = factory.class_
        sync = factory.kw.get("sync_session_class") or getattr(made, "sync_session_class", made)
        code = type(factory), made.__init__, sync.__init__, sync.get_bind
        if {part.__module__.partition(".")[0] for part in code} <= _KNOWN:
            return None
    _, session = new_session(factory)
    with closing(session):
        bind = session.get_bind(mapper, clause=update(mapper.class_))
        engine, schemas = place_of(bind, getattr(session, "execution_options", {}))
    return engine.pool, frozenset(schemas.items())


def queues_of(gate: DocumentGate) -> CombinedCommits:
    """Return the queues of a gate, for the sessions in them."""
    return gate._queues  # noqa: SLF001  # its own module's
