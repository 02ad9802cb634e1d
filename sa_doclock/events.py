"""The events of locks, which ``sqlalchemy.event`` listens for on any LockingSession."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy.orm import Session, SessionEvents

from .errors import LockFailed
from .lock_info import DocumentKey, LockedName
from .options import LockOptions


class EventfulSession(Session):
    """A Session whose class, makers and instances can be listened to for the events below."""


class ReleasedLock(NamedTuple):
    """A lock that a transaction has held."""

    document: DocumentKey | LockedName
    lock: LockOptions
    held: float
    """Seconds between the grant and the end of the transaction."""


class LockEvents(SessionEvents):
    """The lock events of a :class:`LockingSession`, besides SQLAlchemy's own events.

    ``event.listen(LockingSession, "lock_acquired", function)``, or on a subclass, a
    ``sessionmaker`` or one session; for an AsyncLockingSession, on its ``sync_session``, as
    with all events of SQLAlchemy.  A listener must not use the session.
    """

    # What makes a class of events one of SQLAlchemy's: not documented for others, the same
    # since 0.7, and tested by tests/integration/instrumentation.
    _target_class_doc = "SomeLockingSession"
    _dispatch_target = EventfulSession

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
            many documents tells each of them with its whole time.
        """

    def lock_failed(self, session: Session, error: LockFailed, waited: float | None) -> None:
        """The database has refused a lock, or ended the transaction.

        :param error: it names the document, and comes out of the call after this.
        :param waited: seconds that the call took; None where it was no call for a lock, but
            a flush, a commit or another statement.
        """

    def locks_released(
        self, session: Session, released: Sequence[ReleasedLock], outcome: str
    ) -> None:
        """A transaction or savepoint has ended, and the session counts on its locks no more.

        The server has given them up, with two exceptions: InnoDB and SQL Server keep what was
        locked in a savepoint to the end of the transaction, and a Connection that was lent with
        its transaction open keeps all to the end of that.

        :param outcome: ``"committed"``, ``"rolled back"``, or ``"lost"`` with the connection
            or by the server's own decision.
        """
