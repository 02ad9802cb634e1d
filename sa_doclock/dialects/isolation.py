"""The isolation levels of a database: which ones protect a document, and how one is set."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Flag, auto
from typing import Any, ClassVar, Final

from sqlalchemy import Connection

from ..options import LockOptions, base_of

READ_COMMITTED: Final = "READ COMMITTED"
REPEATABLE_READ: Final = "REPEATABLE READ"
SNAPSHOT: Final = "SNAPSHOT"


class PlainReads(Flag):
    """The reads without a lock at one isolation level."""

    PAST_WRITERS = auto()
    """They neither wait for a writer nor see it before its commit, and no commit fails because of them;
    the test kit then runs fewer orders."""

    OLDER = auto()
    """They may be older than a lock that was granted before them."""

    CONFLICT = auto()
    """The server refuses to write a row that another transaction has changed since it was read, or
    the read itself has locked the row."""


class IsolationLevels:
    """The isolation levels, by SQLAlchemy's names."""

    levels: ClassVar[Mapping[LockOptions, tuple[str, ...]]]
    """For each lock, the isolation levels that protect a document: the first is set for a new
    transaction, an open one may have any of them.  A lock with modifiers that is not there has the
    levels of its base lock.  If it is empty, the level cannot be chosen, and the server is not asked."""

    kept: ClassVar[Mapping[LockOptions, frozenset[str]]] = {}
    """The levels that the program may have chosen, and that a lock does not replace by ``levels``:
    they protect a document as well, and more."""

    plain_reads: ClassVar[Mapping[str, PlainReads]] = {"SERIALIZABLE": PlainReads.CONFLICT}
    """One row for each level whose reads without a lock are special."""

    locking_read_is_latest: ClassVar[bool] = False
    """FOR SHARE reads the last commit, also in a transaction whose plain reads are older."""

    def levels_for(self, lock: LockOptions) -> tuple[str, ...]:
        """Return the ``levels`` of this lock."""
        return self.levels.get(lock & ~LockOptions.NoKey) or self.levels.get(base_of(lock), ())

    def set_once(self, connection: Connection, level: str) -> None:
        """Set the isolation level of the transaction that is about to start, and of no other.

        Override it where the server can.  Called after SQLAlchemy's BEGIN and before any statement.
        Where it is not overridden, SQLAlchemy sets the level of the connection, and sets it back
        before the connection goes to its pool.
        """

    def ask_level(self, connection: Connection) -> str | None:
        """Ask the server for the level of the open transaction; None where a database has only one.

        Called after a statement of the program that may have changed it, before the next lock.  An error
        is the driver's own.
        """
        driver: Any = connection.connection.dbapi_connection
        try:
            level: str | None = connection.dialect.get_isolation_level(driver)
        except NotImplementedError:  # a dialect of SQLAlchemy's without levels, as Firebird's
            return None
        return level

    def note_default(self, connection: Connection) -> None:
        """Set the isolation level that a new transaction has in the connection's dialect; called once.

        SQLAlchemy asks in the engine's first connection, before the listeners for "connect" of
        the program, which may set another.  Called in the block of ``note_server()``, before it.
        """
