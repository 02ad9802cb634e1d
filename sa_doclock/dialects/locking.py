"""Role 1 of a dialect: the statements that take a lock, and their isolation levels."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

from sqlalchemy import Connection, Table

from ..errors import WrongIsolation
from ..options import LockOptions, base_of
from .isolation import IsolationLevels
from .lock_statements import LockStatements


class Locking:
    """The locks of the database: a header row, or the whole transaction."""

    name: ClassVar[str]
    """SQLAlchemy's name of the dialect."""

    isolation: IsolationLevels
    """The isolation levels that protect a document."""

    statements: LockStatements = LockStatements()
    """The SELECTs that lock rows."""

    queued: ClassVar[frozenset[LockOptions]] = frozenset(
        {LockOptions.ForUpdate, LockOptions.SharedRead}
    )
    """The locks that wait for another holder, in a transaction that is opened for them."""

    locks_database: ClassVar[bool] = False
    """Every lock is a lock on the whole database, and its waiters poll for it."""

    def check_support(self, lock: LockOptions) -> None:
        """Raise LockNotSupported if this database or version cannot give that lock."""

    def check_table(self, connection: Connection, table: Table) -> None:
        """Raise LockNotSupported if rows of this table cannot be locked."""

    def hides_rows(self, connection: Connection, table: Table) -> str | None:
        """Return why rows of this table that can be read may not be found by a lock; None: all are.

        Asked where a lock by key has found no row.
        """
        return None

    def check_adopted(self, connection: Connection, lock: LockOptions, table: Table) -> None:
        """Raise LockNotSupported if ``with_for_update()`` has locked no rows of this table.

        Called after the statement.
        """
        self.check_table(connection, table)

    def begin(self, connection: Connection, lock: LockOptions, seconds: float | None) -> None:
        """Send what must be the first statement of a transaction opened for this lock."""

    def join(
        self,
        connection: Connection,
        lock: LockOptions,
        seconds: float | None,
        level: str | None,
        opened_for: LockOptions | None,
        header: Table | None,
    ) -> bool:
        """Take this lock in a transaction that is open already, at this isolation level.

        :param opened_for: the lock that the transaction was opened for; None where it was
            opened for something else.
        :param header: the table whose rows are to be locked; None for a named lock.
        :returns: whether the database had no transaction yet, and this lock has opened it.
        :raises WrongIsolation: the transaction cannot protect a document any more.
        """
        wanted, opened = base_of(lock), base_of(opened_for or LockOptions.None_)
        snapshot = LockOptions.SnapshotRead
        if wanted is snapshot and opened is not snapshot:
            raise WrongIsolation(
                "a snapshot starts with its transaction, and this one is open already; "
                "read the snapshot first, or in a session of its own"
            )
        if opened is snapshot and wanted is not snapshot:
            raise WrongIsolation(
                "the transaction was opened read-only by a SnapshotRead; "
                "end it before you lock, or lock in a session of its own"
            )
        levels = self.isolation.levels_for(lock)
        if levels and level not in levels:
            raise WrongIsolation(
                f"the transaction is open at {level}, where what is read after the grant can be "
                f"older than the lock; take the lock before any other statement of the "
                f'transaction, or make the engine with isolation_level="{levels[0]}"'
            )
        return False

    def inserting(
        self, connection: Connection, key: str, seconds: float | None
    ) -> AbstractContextManager[bool]:
        """Return a block in which a row is inserted that others may insert at the same time.

        It gives whether no other is in a block with this key.  Where two INSERTs of one row can
        deadlock, it lets in one at a time; the block must not wait for a lock then.

        :param key: names the row, the same for all who insert it.
        :param seconds: the limit of each wait for another's INSERT, where the server has one; None:
            as it is configured.
        :raises LockNotAvailable: another was in the block for that long.
        """
        return nullcontext(False)
