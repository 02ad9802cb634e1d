"""The isolation levels of a database: which ones protect a document, and how one is set."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Flag, auto
from typing import Any, ClassVar, Final

from sqlalchemy import Connection

from ..errors import WrongIsolation
from ..options import LockOptions, base_of

READ_COMMITTED: Final = "READ COMMITTED"
REPEATABLE_READ: Final = "REPEATABLE READ"
SNAPSHOT: Final = "SNAPSHOT"


class PlainReads(Flag):
    """The reads without a lock at one isolation level."""

    PAST_WRITERS = auto()
    """They neither wait for a writer nor see it before its commit, and no commit fails because of
    them; the test kit then runs fewer orders.
    """

    OLDER = auto()
    """They may be older than a lock that was granted before them."""

    CONFLICT = auto()
    """The server refuses to write a row that another transaction has changed since it was read, or
    the read itself locks the row.
    """


class IsolationLevels:
    """The isolation levels, by SQLAlchemy's names."""

    levels: ClassVar[Mapping[LockOptions, tuple[str, ...]]]
    """For each lock, the isolation levels that protect a document: the first is set for a new
    transaction, an open one may have any of them.  A lock with modifiers that is missing has the
    levels of its base lock, and SharedRead those of ForUpdate.  Empty: the level cannot be chosen,
    and the server is not asked.
    """

    plain_reads: ClassVar[Mapping[str, PlainReads]] = {"SERIALIZABLE": PlainReads.CONFLICT}
    """One row for each level whose reads without a lock are special."""

    def set_once(self, connection: Connection, level: str) -> None:
        """Set the isolation level of the transaction that is about to start, and of no other.

        Override it if the server can.  Called after SQLAlchemy's BEGIN and before any statement.
        By default, SQLAlchemy sets the level of the connection, and restores it before the
        connection returns to its pool.
        """

    def ask_level(self, connection: Connection) -> str | None:
        """Ask the server for the level of the open transaction; None if the database has only one.

        Called before the next lock after a statement of the program that may have changed it.
        Errors are the driver's.
        """
        driver: Any = connection.connection.dbapi_connection
        try:
            level: str | None = connection.dialect.get_isolation_level(driver)
        except NotImplementedError:  # a SQLAlchemy dialect without levels, such as Firebird's
            return None
        return level


def levels_for(isolation: IsolationLevels, lock: LockOptions) -> tuple[str, ...]:
    """Return the ``levels`` of this lock."""
    levels, base = isolation.levels, base_of(lock)
    like = LockOptions.ForUpdate if base is LockOptions.SharedRead else base
    return levels.get(lock & ~LockOptions.NoKey) or levels.get(base) or levels.get(like, ())


def kept_levels(isolation: IsolationLevels, lock: LockOptions) -> tuple[str, ...]:
    """Return the levels that a program may have chosen, and that this lock does not replace.

    A ForUpdate lock keeps the stricter ones of its ``levels``, which protect a document too.
    """
    base = base_of(lock)
    return levels_for(isolation, base)[1:] if base is LockOptions.ForUpdate else ()


def locking_read_is_latest(isolation: IsolationLevels) -> bool:
    """Return whether FOR SHARE reads the last commit in a transaction whose plain reads are older.

    If a plain read may be older, a server either refuses to lock a row that has changed since, or
    locks and reads the current row.
    """
    reads = isolation.plain_reads.values()
    return any(PlainReads.OLDER in each and PlainReads.CONFLICT not in each for each in reads)


def sets_own_level(isolation: IsolationLevels) -> bool:
    """Return whether SQLAlchemy sets no level: there is only one, or ``set_once()`` sets it."""
    return not isolation.levels or type(isolation).set_once is not IsolationLevels.set_once


def check_open(
    isolation: IsolationLevels, lock: LockOptions, level: str | None, opened_for: LockOptions | None
) -> None:
    """Refuse a lock in a transaction that is open at a level where it cannot protect a document.

    :param opened_for: the lock for which the transaction was opened; None: for something else.
    :raises WrongIsolation: the transaction can no longer protect a document.
    """
    snapshot = LockOptions.SnapshotRead
    wants, has = base_of(lock) is snapshot, base_of(opened_for or LockOptions.None_) is snapshot
    if wants and not has:
        raise WrongIsolation(
            "a snapshot starts with its transaction, and this transaction is already open. "
            "Read the snapshot first, or in a session of its own"
        )
    if has and not wants:
        raise WrongIsolation(
            "the transaction was opened read-only by a SnapshotRead. "
            "End it before you lock, or lock in a session of its own"
        )
    levels = levels_for(isolation, lock)
    if levels and level not in levels:
        uncommitted = level == "READ UNCOMMITTED"
        raise WrongIsolation(
            f"the transaction is open at {level}, where a read after the lock can return rows "
            f"{'that another transaction has not committed' if uncommitted else 'from before it'}. Take the lock before any "
            "other statement of the transaction, or make the engine with "
            f'isolation_level="{levels[0]}"'
        )


def note_default_level(connection: Connection) -> None:
    """Ask for the isolation level of new transactions, and note it in the connection's dialect.

    SQLAlchemy asks on the engine's first connection, before the program's listeners for "connect",
    which may set another.
    """
    if "isolation_level" not in connection.get_execution_options():
        connection.dialect.default_isolation_level = connection.get_isolation_level()
