"""Every error of sa_doclock: one class per reaction of the caller.

DocLockError
├── LockFailed(DocLockError, sqlalchemy.exc.OperationalError)   the database said no
│   ├── LockNotAvailable   held by another past the wait: tell the user, or try later
│   ├── DeadlockDetected   run the transaction again
│   └── SnapshotConflict   run the transaction again
├── LockNotSupported       this database, table or connection cannot give that lock
└── LockMisuse             the program is wrong: change it
    ├── UnsavedChanges     the object to lock has pending changes
    ├── WrongIsolation     the open transaction cannot protect a document
    ├── LockUpgradeRefused a read lock cannot become ForUpdate in one transaction
    ├── LockOrderViolation documents locked against the declared order
    └── UnlockedWrite      a declared document changed without its ForUpdate lock
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import OperationalError, SAWarning, StatementError

if TYPE_CHECKING:
    from .lock_info import LockConnection
    from .options import LockOptions


class DocLockError(Exception):
    """The root: ``except DocLockError`` catches all that this library raises of its own.

    :ivar entity: the mapped class of the document; None where it is not known.
    :ivar ident: its primary key, as the caller gave it; None where it is not known.
    :ivar lock: the lock that was asked for; None where it is not known, as in a commit.
    :ivar retryable: the whole transaction, run again, may succeed.
    :ivar attempts: how often run_transaction has tried before it gave up; None elsewhere.
    """

    retryable: bool = False
    attempts: int | None = None

    def __init__(
        self,
        message: str,
        *,
        entity: type[Any] | None = None,
        ident: Any = None,
        lock: LockOptions | None = None,
    ) -> None:
        super().__init__(message)
        self.entity = entity
        self.ident = ident
        self.lock = lock

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0],), self.__dict__


class LockFailed(DocLockError, OperationalError):
    """The database refused; also an ``sqlalchemy.exc.OperationalError``.

    :ivar orig: the driver's own exception; None where the server answered by value.
    :ivar waited: seconds that the call for the lock took; None where it was no such call, but a
        flush, a commit or another statement.
    """

    code = None  # type: ignore[assignment]  # SQLAlchemy's page on such errors knows no locks

    def __init__(
        self,
        message: str,
        *,
        entity: type[Any] | None = None,
        ident: Any = None,
        lock: LockOptions | None = None,
        statement: str | None = None,
        params: Any = None,
        orig: BaseException | None = None,
        hide_parameters: bool = False,
    ) -> None:
        # DBAPIError.__init__ would put the driver's text in front of ours.
        StatementError.__init__(
            self, message, statement, params, orig, hide_parameters=hide_parameters
        )
        self.connection_invalidated = False
        self.waited: float | None = None
        self.entity = entity
        self.ident = ident
        self.lock = lock


class LockNotAvailable(LockFailed):
    """Another transaction held the document past the time that this one would wait.

    :ivar blockers: who held it when it was given up, as far as the server tells; empty unless
        the session was made with ``LockingSession(diagnose=True)``.
    """

    retryable = True
    blockers: tuple[LockConnection, ...] = ()


class DeadlockDetected(LockFailed):
    """The server ended a circle of waiting transactions by ending this one."""

    retryable = True


class SnapshotConflict(LockFailed):
    """Another transaction changed a row that this one had read, before this one could write."""

    retryable = True


class LockNotSupported(DocLockError):
    """The database, table, connection or statement cannot give the lock that was asked for."""


class LockMisuse(DocLockError):
    """The program is wrong: the text says what to change."""


class UnsavedChanges(LockMisuse):
    """The object to lock has pending changes, which a fresh read would overwrite."""


class WrongIsolation(LockMisuse):
    """The open transaction's isolation level cannot protect a document."""


class LockUpgradeRefused(LockMisuse):
    """A read lock cannot become ForUpdate: two sessions that do so deadlock."""


class LockOrderViolation(LockMisuse):
    """A document was locked against the declared order."""


class UnlockedWrite(LockMisuse):
    """A declared document was changed without its ForUpdate lock."""


class UnlockedWriteWarning(SAWarning):
    """The warning of ``LockingSession(guard="warn")`` in place of :class:`UnlockedWrite`."""


class ClusterLockWarning(UserWarning):
    """The lock is known to one node of a cluster alone, and other nodes take writes too.

    Said once for each engine of rows, and once of named locks.
    """
