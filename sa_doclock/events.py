"""The events of locks, for ``sqlalchemy.event`` on any LockingSession."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from sqlalchemy.orm import Session, SessionEvents

from .checkout_info import Checkout
from .errors import LockFailed, UnlockedWrite
from .keys import DocumentKey, LockedName
from .options import LockOptions
from .sqlalchemy_internals import collect_listeners


class EventfulSession(Session):
    """A Session that has the events below: of its class, its makers and its instances."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Collect the listeners of the superclasses for this one."""
        super().__init_subclass__(**kwargs)
        collect_listeners(cls)  # in the thread that creates the class, before others use it


# Threads: add() and a search in a set are atomic, and the set only grows.
listened: Final = set[str]()
"""The names of the events that have ever had a listener in this process.

SQLAlchemy creates an object for each event name read from a session, so only these are read.
"""


class RequestedLock(NamedTuple):
    """A lock as a call requests it."""

    entity: type[Any] | None
    """The mapped class of the call; None for a named lock."""
    ident: Any
    """The primary key, or the name, as the caller gave it; None for several rows."""
    lock: LockOptions
    """The lock with its modifiers."""
    lock_timeout: float | None
    """Seconds that the call may wait; None: as the server is configured."""
    bind_arguments: Mapping[str, Any] = MappingProxyType({})
    """The arguments of ``Session.get_bind()``, which chooses the database."""


class ReleasedLock(NamedTuple):
    """A lock that a transaction has held."""

    document: DocumentKey | LockedName
    lock: LockOptions
    held: float
    """Seconds between the grant and the end of the transaction."""


class LockEvents(SessionEvents):
    """The events of the locks of a :class:`LockingSession`, besides SQLAlchemy's own events.

    ``event.listen(LockingSession, "lock_acquired", function)``, or on a subclass, a
    ``sessionmaker`` or one session; for an AsyncLockingSession, on its ``sync_session``, as
    with all events of SQLAlchemy.  A listener must not use the session.
    """

    # SQLAlchemy needs these undocumented attributes in a class of events.  They have been the same
    # since 0.7; tests/integration/instrumentation tests them.
    _target_class_doc = "SomeLockingSession"
    _dispatch_target = EventfulSession

    # SQLAlchemy calls this for each event.listen() on our sessions, and otherwise would call no
    # listener: tests/integration/instrumentation.
    @classmethod
    def _listen(cls, event_key: Any, **options: Any) -> None:
        listened.add(event_key.identifier)
        super()._listen(event_key, **options)

    def before_lock(self, session: Session, requested: RequestedLock) -> None:
        """A call for a lock begins, before its wait at a gate and its first statement.

        There is no event for a document that the transaction already holds, nor for a call that is
        refused as a misuse before anything is sent.

        :param requested: the requested lock.
        """

    def after_lock(
        self,
        session: Session,
        requested: RequestedLock,
        granted: Sequence[DocumentKey | LockedName],
        waited: float,
        error: BaseException | None,
    ) -> None:
        """A call for a lock ends: once after each ``before_lock``, in the same thread or task.

        It follows the ``lock_acquired`` or ``lock_failed`` of the call, and the rollback after a failure.

        :param requested: as for ``before_lock``.
        :param granted: the documents that this call has locked, or locked more strongly; empty if no row
            was found.
        :param waited: seconds that the call took, with its round trips.
        :param error: the error that the call is about to raise; None if the lock was granted.
        """

    def lock_acquired(
        self, session: Session, document: DocumentKey | LockedName, lock: LockOptions, waited: float
    ) -> None:
        """A document has been locked.

        :param document: ``(root mapped class, primary key)``, as in ``held_locks``; ``(None, (key,))``
            for a named lock.
        :param waited: seconds that the call took, with its round trips.  A call that locks many documents
            reports its whole time for each of them.
        """

    def lock_failed(self, session: Session, error: LockFailed, waited: float | None) -> None:
        """The database has refused a lock or ended the transaction.

        :param error: the error that the call is about to raise; it names the document.
        :param waited: seconds that the call took; None in a flush, a commit or another statement, which
            are no calls for a lock.
        """

    def unlocked_write(self, session: Session, error: UnlockedWrite, line: str | None) -> None:
        """A session with ``guard="warn"`` writes to a document without its ForUpdate lock.

        :param error: the error of ``guard="raise"``; it names the document.
        :param line: the line of the program that writes, ``shop/orders.py:42``.
        """

    def checkout_changed(self, session: Session, checkout: Checkout, change: str) -> None:
        """A check-out was written; it takes effect with the commit.

        :param checkout: its new state; after a check-in, its last one.
        :param change: ``"checked out"``, ``"renewed"``, ``"taken over"`` or ``"checked in"``.
        """

    def locks_released(
        self, session: Session, released: Sequence[ReleasedLock], outcome: str
    ) -> None:
        """A transaction or savepoint has ended, and the session no longer relies on its locks.

        The server has released them, with two exceptions. After the rollback of a savepoint InnoDB
        keeps its row locks until the transaction ends, and so does SQL Server with locks that it has
        escalated or converted there. A Connection that was lent with an open transaction keeps all
        locks until that transaction ends.

        :param outcome: ``"committed"``, ``"rolled back"``, or ``"lost"``: with the connection, or because
            the server ended the transaction.
        """

    def transaction_retried(
        self, session: Session, error: BaseException, attempt: int, pause: float | None
    ) -> None:
        """``run_transaction()`` runs its function again, or gives up, because of this error.

        :param error: one of this library, or of ``retry_on=``.
        :param session: the session of the failed attempt; it is closed.
        :param attempt: the number of the failed attempt, from 1.
        :param pause: seconds until the next attempt; None if it gives up, and the error is raised.
        """
