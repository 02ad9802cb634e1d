"""The family of a session: features that the core calls by name, and never imports.

The session package puts the objects into :class:`SessionParts`.  Each is None where it is off.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from sqlalchemy import Connection, Result
from sqlalchemy.orm import Mapper, Session

from ...dialects.base import Read
from ...errors import LockLost
from ...keys import Identity
from ..lock_request import LockRequest

Block = AbstractContextManager[Any] | None

Noting = AbstractContextManager[Callable[[Any], Any]]
"""A block around a statement that writes; it gives a function for the result."""

Executor = Callable[[Callable[..., Result[Any]], Mapping[str, Any], Mapping[str, Any]], Result[Any]]
"""Executes a statement: takes SQLAlchemy's own executor, its execution options and
its bind arguments."""

Reads = Callable[[Any, Identity], Iterable[Read]]
"""Returns the reads that follow the lock of the document of this class and key."""


class Guard(Protocol):
    """Refuses to write documents that are not held."""

    def before_flush(self, session: Session) -> None:
        """Check the writes of the coming flush."""

    def around_dml(self, statement: Any, parameters: Any, how: Mapping[str, Any]) -> Noting:
        """Return a block around an INSERT, UPDATE or DELETE that the program executes.

        :param how: the execution options and bind arguments that it is executed with.
        """

    def around_objects(self, objects: Collection[Any]) -> AbstractContextManager[Any]:
        """Return a block around the writing of these objects without a flush."""

    def around_rows(
        self, mapper: Mapper[Any], rows: Sequence[Mapping[str, Any]], *, insert: bool
    ) -> AbstractContextManager[Any]:
        """Return a block around the writing of rows without objects.

        :param insert: they are new; else they are changed, by their primary keys.
        """

    def around_unguarded(self) -> AbstractContextManager[Any]:
        """Return a block in which declared documents are written without their lock."""

    def roll_back(self) -> None:
        """A savepoint is rolled back."""


class Adoption(Protocol):
    """Makes the ``with_for_update()`` of the program a lock."""

    def executor(self, session: Session, statement: Any) -> Executor | None:
        """Return the executor of the statement as a lock; None if it is not a lock."""


class Precondition(Protocol):
    """Compares the caller's ``given`` arguments, such as a version, with the row."""

    def check_request(self, request: LockRequest) -> None:
        """Check the arguments, before anything is sent."""

    def check_found(self, request: LockRequest, found: object) -> None:
        """Compare the found row with the arguments; under the lock, if any."""


class Versions(Precondition, Protocol):
    """Raises the versions of documents."""

    def before_flush(self, session: Session) -> None:
        """The session is about to flush changes that the guard has allowed."""


class Outbox(Protocol):
    """Keeps statements of one transaction back, to send several in one round trip."""

    def begun(self, connection: Connection, *, lent: bool) -> None:
        """Note a connection, as ``SessionPart.begun()`` does."""

    def before_commit(self) -> None:
        """The session is about to flush, and to commit its databases."""

    def paused(self) -> AbstractContextManager[Any]:
        """Return a block in which an INSERT, UPDATE or DELETE of the program is answered at once."""

    def around_save(self) -> Block:
        """Return a block around commit(), and around save_changes() where that commits."""

    def send_writes(self) -> None:
        """Send the waiting statements: the databases have committed."""

    def sends_commit(self) -> bool:
        """Return whether the statement that has failed just now was sent together with COMMIT."""


class Pipelined(Protocol):
    """Sends several statements of a session in one round trip: a pipeline."""

    def of_transaction(self) -> Outbox:
        """Return the outbox of a transaction, which is dropped with it."""

    def around_document(self, reads: Reads) -> AbstractContextManager[Any]:
        """Return a block around the lock of one document and the reads of its parts."""


class Deadline(Protocol):
    """Ends a transaction that holds its locks for too long."""

    def is_over(self) -> bool:
        """Return whether the locks must not be counted on any more; nothing is sent."""

    def end_locks(self) -> LockLost | None:
        """End the transaction where ``is_over()``, and return the error of it."""
