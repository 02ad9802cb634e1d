"""The steps of a database at the begin, the savepoints and the end of a transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from sqlalchemy import Connection, Engine

from ..options import LockOptions


class TransactionLifecycle:
    """The steps that SQLAlchemy and the driver omit.  By default they omit none."""

    kept_by_prepare: ClassVar[frozenset[LockOptions]] = frozenset()
    """The locks that a prepared transaction keeps until its second phase, whatever it has written."""

    def begun(self, connection: Connection, *, lent: bool) -> None:
        """Note the state of a connection whose transaction begins now, before the program's listeners.

        If the server stores the time of the begin, make it begin now.

        :param lent: the program has begun it, perhaps earlier, and must find it unchanged.
        """

    def before_savepoint(self, connection: Connection) -> None:
        """Send the statement that a SAVEPOINT needs before it."""

    def commit_failed(self, connection: Connection, cursor: Any = None) -> None:
        """End a transaction that a failed COMMIT has left open, which SQLAlchemy does not.

        Called after an interruption too, before SQLAlchemy closes the connection.

        :param cursor: of the interrupted statement.
        """

    def before_rollback(self, connection: Connection) -> None:
        """Ensure a transaction for the ROLLBACK that follows, if that is an error without one.

        Called if an error, or a foreign statement, may have ended the transaction.
        """

    def has_unread_answer(self, connection: Connection, error: BaseException) -> bool:
        """Return whether the driver's error has left the answer to its statement unread.

        Then the connection is lost: the next reader may get that answer for another one.  False: it
        has not, or the driver cannot tell.
        """
        return False

    def descriptor(self, driver_connection: Any) -> int | None:
        """Return the file descriptor of the driver's connection to its server.

        A forked process points it at the null device.  None: there is none, or the driver hides it;
        then the process must not close its copy of the connection.
        """
        fileno: Callable[[], int] | None = getattr(driver_connection, "fileno", None)
        return None if fileno is None else fileno()

    def closed_to_forks(self, connection: Connection) -> Callable[[Engine], str | None] | None:
        """Return a function that says why a fork must not connect by this engine; None: it may.

        Called in the fork of a process in which this connection is in a transaction.  None: the
        fork may connect to this database like any other process.
        """
        return None
