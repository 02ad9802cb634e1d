"""Role 1 of a dialect: the statements that take a lock, and their isolation levels."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

from sqlalchemy import Connection, Table

from ..errors import WrongIsolation
from ..options import LockOptions, base_of, is_row_lock
from .isolation import IsolationLevels


class Locking:
    """The locks of the database: a header row, or the whole transaction."""

    name: ClassVar[str]
    """SQLAlchemy's name of the dialect."""

    isolation: IsolationLevels
    """The isolation levels that protect a document."""

    hints: ClassVar[Mapping[LockOptions, str]] = {}
    """Table hints, where SQLAlchemy's ``with_for_update()`` writes no lock."""

    hints_by_key: ClassVar[Mapping[LockOptions, str]] = {}
    """The same for a SELECT that looks its rows up by their keys, where that one differs."""

    candidate_hints: ClassVar[Mapping[LockOptions, str]] = {}
    """Hints for the SELECT that looks for the rows of a join without a lock, before they are locked
    by their keys; by the lock that they will get."""

    suffixes: ClassVar[Mapping[LockOptions, str]] = {}
    """Text at the end of a SELECT, where what SQLAlchemy's ``with_for_update()`` writes for this
    lock is none by itself."""

    locks_what_is_read: ClassVar[bool] = False
    """A lock is on what the plan reads, which may be an entry of an index that has all that was
    asked for, or nothing at all.  A statement that locks then reads every column of the row, and
    the rows of a join are locked by their keys."""

    locks_subqueries: ClassVar[bool] = False
    """FOR UPDATE locks the rows of the tables in a subquery of FROM too, where the subquery has no
    lock of its own.  Those of a CTE no database locks."""

    by_keys_hint: ClassVar[str | None] = None
    """A table hint without which a SELECT of many keys may read, and lock, other rows too; it has
    ``{index}`` for the name of the index on the key."""

    max_parameters: ClassVar[int] = 32_000
    """The number of keys that one statement can have; get_entities() locks more in chunks."""

    max_parameters_of_or: ClassVar[int] = 5_000
    """The same for composite keys, each of which is an alternative of an OR, and takes time to plan:
    PostgreSQL plans 16,000 for 6 s, 2,500 for 0.4 s."""

    retries_missing_rows: ClassVar[bool] = False
    """A row that was replaced during the wait is not found by the statement that waited."""

    queued: ClassVar[frozenset[LockOptions]] = frozenset(
        {LockOptions.ForUpdate, LockOptions.SharedRead}
    )
    """The locks that wait for another holder, in a transaction that is opened for them."""

    locks_database: ClassVar[bool] = False
    """Every lock is a lock on the whole database, and its waiters poll for it."""

    def parameters_for_keys(self, columns: int) -> int:
        """Return the number of parameters that one statement can have, for keys of so many columns."""
        most = self.max_parameters
        return most if columns == 1 else min(most, self.max_parameters_of_or)

    def row_lock(self, lock: LockOptions, level: str | None) -> LockOptions:
        """Return the lock that the SELECT must carry, in a transaction at this isolation level."""
        return lock if is_row_lock(lock) else base_of(lock)

    def locks_one_table_of_join(self) -> bool:
        """Return whether ``FOR UPDATE OF header`` leaves the other tables of a join unlocked."""
        return True

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
