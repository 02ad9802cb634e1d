"""Every error of sa_doclock: one class per reaction of the caller.

DocLockError
├── LockFailed(DocLockError, sqlalchemy.exc.OperationalError)   the database said no
│   ├── LockNotAvailable   another transaction held it for too long: tell the user, or try later
│   ├── DeadlockDetected   run the transaction again
│   ├── SnapshotConflict   run the transaction again
│   └── LockLost           the lock ended before the commit, and nothing is saved: find out why
├── CommitUnknown(DocLockError, sqlalchemy.exc.OperationalError)   no answer to COMMIT: look in the database
├── StaleDocument          the document has another version: show it again
├── CheckedOut             another owner has it checked out: say who, and until when
├── CheckoutLost           the check-out was taken over or checked in: show the document again
├── LockNotSupported       this database, table or connection cannot give that lock
└── LockMisuse             the program is wrong: change it
    ├── UnsavedChanges     the object to lock has pending changes
    ├── WrongIsolation     the open transaction cannot protect a document
    ├── LockUpgradeRefused a read lock cannot become ForUpdate in one transaction
    ├── LockOrderViolation documents locked against the declared order
    └── UnlockedWrite      a declared document changed without its ForUpdate lock
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.exc import OperationalError, SAWarning, StatementError

if TYPE_CHECKING:
    from .checkout_info import Checkout
    from .options import LockOptions
    from .wait_info import LockConnection


REPOSITORY: Final = "https://github.com/sa-doclock/sa-doclock"
"""The address of this project; CONTRIBUTING.md lists the files that repeat it."""

DOCS: Final = "https://sa-doclock.github.io/sa-doclock"
"""The site.  Errors, findings and reports link to its pages; mkdocs.yml and pyproject.toml repeat it."""

PAGE: Final = f"{DOCS}/errors.html"
"""The page on all errors; the outcome of an error is its anchor there."""


def with_background(text: str, kind: str, anchor: str) -> str:
    """Return the text of an error or a warning with a link to its background, in SQLAlchemy's format.

    :param kind: "error" or "warning".
    """
    end = "\n" if "\n" in text else " "  # as SQLAlchemy does after the lines of a statement
    return f"{text}{end}(Background on this {kind} at: {PAGE}#{anchor})"


class DocLockError(Exception):
    """The base class of the errors of this library: ``except DocLockError`` catches all of them.

    :ivar entity: the mapped class of the document; None if unknown.
    :ivar ident: its primary key, as the caller gave it; None if unknown.
    :ivar lock: the requested lock; None if unknown, as in a commit.
    :ivar retryable: True if the whole transaction may succeed when it is run again.
    :ivar attempts: the attempts of run_transaction() before it gave up; 0 outside of it.
    """

    retryable: bool = False
    attempts: int = 0
    _details: str = ""

    def __init__(
        self,
        message: str,
        *,
        entity: type[Any] | None = None,
        ident: Any = None,
        lock: LockOptions | None = None,
    ) -> None:
        Exception.__init__(self, message)
        self.entity = entity
        self.ident = ident
        self.lock = lock

    def __str__(self) -> str:
        return with_background(super().__str__(), "error", outcome_of(self))

    @property
    def reason(self) -> str:
        """The text for a log or a user: without SQL, parameters and other connections.

        It names the document and its primary key.
        """
        text: str = self.args[0]
        return text.replace(self._details, "") if self._details else text

    def add_details(self, text: str) -> None:
        """Add the statement to the text, but not to the reason."""
        self._details = text
        self.args = (f"{self.args[0]}{text}", *self.args[1:])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0],), self.__dict__


class LockFailed(DocLockError, OperationalError):
    """The database refused the lock or ended the transaction; also an OperationalError of SQLAlchemy.

    :ivar orig: the driver's exception; None if the server answered with a value.
    :ivar waited: seconds that the call for the lock took; 0.0 for a flush, a commit or another
        statement, which are not measured.
    """

    code = None  # type: ignore[assignment]  # SQLAlchemy's page on such errors has nothing on locks
    waited: float = 0.0

    def __init__(
        self,
        message: str,
        *,
        statement: str | None = None,
        params: Any = None,
        orig: BaseException | None = None,
        hide_parameters: bool = False,
        **document: Any,
    ) -> None:
        # DBAPIError.__init__ would prepend the driver's message.
        StatementError.__init__(
            self, message, statement, params, orig, hide_parameters=hide_parameters
        )
        DocLockError.__init__(self, message, **document)
        self.connection_invalidated = False


class LockNotAvailable(LockFailed):
    """Another transaction held the document for longer than this one waits.

    :ivar blockers: the connections that held it when the wait ended, as far as the server tells;
        empty unless the session was made with ``LockingSession(diagnose=True)``.
    """

    retryable = True
    blockers: tuple[LockConnection, ...] = ()


class DeadlockDetected(LockFailed):
    """The server ended this transaction to resolve a deadlock."""

    retryable = True


class SnapshotConflict(LockFailed):
    """Another transaction changed a row that this one has read, or the table of the statement."""

    retryable = True


class LockLost(LockFailed):
    """The lock was lost before the commit, and changes that depend on it are not saved.

    It was held for longer than the session's ``hold_limit``; or the connection was lost or ended by the
    server; or the transaction was ended behind the session's back: by the program on the session's
    Connection, by a statement that commits, or by the driver.

    If the connection is lost in COMMIT, the error is :class:`CommitUnknown`, unless the session knows that
    the server did not commit.

    :ivar retryable: True if a session with ``commit_outcome=True`` lost its connection in COMMIT, and
        the server says that it did not commit.
    """


class CommitUnknown(DocLockError, OperationalError):
    """The connection was lost in COMMIT: the transaction is either saved as a whole, or not at all.

    Look in the database before you run it again.  A session with ``commit_outcome=True`` asks
    PostgreSQL, and raises this error only if the server cannot tell.

    :ivar orig: the driver's exception.
    """

    code = None  # type: ignore[assignment]  # as for LockFailed

    def __init__(self, message: str, **failure: Any) -> None:
        # Called as a function: the classes have the same bases, but neither derives from the other.
        LockFailed.__init__(self, message, **failure)  # type: ignore[arg-type]


class StaleDocument(DocLockError):
    """The version of the document shows that it has changed since the caller read it.

    :ivar expected: the version that the caller has seen.
    :ivar found: the version that the document has now.
    """

    def __init__(
        self, message: str, *, expected: Any = None, found: Any = None, **document: Any
    ) -> None:
        super().__init__(message, **document)
        self.expected = expected
        self.found = found


class CheckedOut(DocLockError):
    """Another owner has the document checked out.

    :ivar checkout: who has it, since when and until when, as of the grant of the lock.  Only an error
        that a program constructs without it lacks the attribute.
    """

    checkout: Checkout

    def __init__(self, message: str, *, checkout: Checkout | None = None, **document: Any) -> None:
        super().__init__(message, **document)
        if checkout is not None:
            self.checkout = checkout


class CheckoutLost(DocLockError):
    """The check-out has ended: the document was taken over or checked in.

    :ivar expected: the epoch that the caller gave.  Only an error that a program constructs without it
        lacks the attribute.
    :ivar found: the epoch of the present check-out; None if there is none.
    """

    expected: int

    def __init__(
        self,
        message: str,
        *,
        expected: int | None = None,
        found: int | None = None,
        **document: Any,
    ) -> None:
        super().__init__(message, **document)
        if expected is not None:
            self.expected = expected
        self.found = found


class LockNotSupported(DocLockError):
    """The database, table, connection or statement cannot give the requested lock."""


class LockMisuse(DocLockError):
    """The program uses locks in a way that cannot work; the message says what to change."""


class UnsavedChanges(LockMisuse):
    """The object to lock has pending changes, which a fresh read would overwrite."""


class WrongIsolation(LockMisuse):
    """The open transaction's isolation level cannot protect a document."""


class LockUpgradeRefused(LockMisuse):
    """A read lock cannot become ForUpdate: two sessions that try it deadlock."""


class LockOrderViolation(LockMisuse):
    """A document was locked against the declared order."""


class UnlockedWrite(LockMisuse):
    """A declared document was changed without its ForUpdate lock."""


class UnlockedWriteWarning(SAWarning):
    """The warning of ``LockingSession(guard="warn")`` in place of :class:`UnlockedWrite`."""


class ClusterLockWarning(UserWarning):
    """Only one node of a cluster knows the lock, and other nodes accept writes too.

    An engine warns once for row locks, and once for named locks.
    """


def outcome_of(error: BaseException) -> str:
    """Return the code of the error in its text, in logs and in metrics: ``not_available``.

    :returns: a subclass has the code of the library's class; any other error has ``failed``.
    """
    if not isinstance(error, DocLockError):
        return "cancelled" if type(error).__name__ == "CancelledError" else "failed"
    own = next(kind for kind in type(error).__mro__ if kind.__module__ == __name__)
    words = re.findall("[A-Z][a-z]+", own.__name__)
    kept = [word.lower() for word in words if word not in {"Lock", "Detected"}]
    return "_".join(kept) or "failed"
