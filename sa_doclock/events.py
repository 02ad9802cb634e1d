"""The events of locks, which ``sqlalchemy.event`` listens for on any LockingSession."""

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
    """A Session whose class, makers and instances can be listened to for the events below."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Collect the listeners of the classes above for this one."""
        super().__init_subclass__(**kwargs)
        collect_listeners(cls)  # in the thread that makes the class, before another thread has it


# Threads: a set's add() and the search in it are atomic; it only grows.
listened: Final = set[str]()
"""The names of the events that anything in this process has ever listened to.

To ask a session, SQLAlchemy makes an object for each event; so it is asked for these alone.
"""


class RequestedLock(NamedTuple):
    """A lock as a call asks for it."""

    entity: type[Any] | None
    """The mapped class of the call; None for a named lock."""
    ident: Any
    """The primary key, or the name, as the caller gave it; None for several rows."""
    lock: LockOptions
    """The lock with its modifiers."""
    lock_timeout: float | None
    """The seconds that the call may wait; None: as the server is configured."""
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

    # The attributes that make a class of events one of SQLAlchemy's: not documented for others, the same
    # since 0.7, and tested by tests/integration/instrumentation.
    _target_class_doc = "SomeLockingSession"
    _dispatch_target = EventfulSession

    # SQLAlchemy calls it for each event.listen() on our sessions, as the classes of events of its own
    # have it.  Were it not called, nobody would be told: tests/integration/instrumentation.
    @classmethod
    def _listen(cls, event_key: Any, **options: Any) -> None:
        listened.add(event_key.identifier)
        super()._listen(event_key, **options)

    def before_lock(self, session: Session, requested: RequestedLock) -> None:
        """A call for a lock begins, before its wait at a gate and its first statement.

        There is no event for a document that the transaction holds already, nor for a call that is
        refused as a misuse before anything is sent.

        :param requested: the lock that the call asks for.
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

        It comes after the ``lock_acquired`` or ``lock_failed`` of the call, and after the
        rollback that its failure needs.

        :param requested: that of ``before_lock``.
        :param granted: the documents that the transaction holds by this call, and held less
            strongly before; empty where no row was found.
        :param waited: seconds that the call took, with its round trips.
        :param error: comes out of the call after this; None where the lock was granted.
        """

    def lock_acquired(
        self,
        session: Session,
        document: DocumentKey | LockedName,
        lock: LockOptions,
        waited: float,
    ) -> None:
        """A document has been locked.

        :param document: ``(root mapped class, primary key)``, as in ``held_locks``; of a named lock
            ``(None, (key,))``.
        :param waited: seconds that the call took, with its round trips; one call that locks
            many documents reports each of them with its whole time.
        """

    def lock_failed(self, session: Session, error: LockFailed, waited: float | None) -> None:
        """The database has refused a lock, or ended the transaction.

        :param error: it names the document, and comes out of the call after this.
        :param waited: seconds that the call took; None where it was no call for a lock, but
            a flush, a commit or another statement.
        """

    def unlocked_write(self, session: Session, error: UnlockedWrite, line: str | None) -> None:
        """A session with ``guard="warn"`` writes to a document without its ForUpdate lock.

        :param error: the error of ``guard="raise"``; it names the document.
        :param line: the line of the program that writes, ``shop/orders.py:42``.
        """

    def checkout_changed(self, session: Session, checkout: Checkout, change: str) -> None:
        """A check-out was written.  It counts when the transaction is committed.

        :param checkout: as it is now; one that was checked in, as it was.
        :param change: ``"checked out"``, ``"renewed"``, ``"taken over"`` or ``"checked in"``.
        """

    def locks_released(
        self, session: Session, released: Sequence[ReleasedLock], outcome: str
    ) -> None:
        """A transaction or savepoint has ended, and the session counts on its locks no more.

        The server has given them up, with two exceptions. After the rollback of a savepoint InnoDB
        keeps its row locks to the end of the transaction, and SQL Server the locks that it has
        escalated or converted there. A Connection that was lent with its transaction open keeps
        all to the end of that.

        :param outcome: ``"committed"``, ``"rolled back"``, or ``"lost"`` with the connection
            or by the server's own decision.
        """

    def transaction_retried(
        self, session: Session, error: BaseException, attempt: int, pause: float | None
    ) -> None:
        """``run_transaction()`` runs its function again, or gives up, because of this error.

        :param error: one of ours, unless ``retry_on=`` named another.
        :param session: that of the attempt that has failed; it is closed.
        :param attempt: the number of that attempt, from 1.
        :param pause: seconds until the next attempt; None: there is none, and the error comes out.
        """
