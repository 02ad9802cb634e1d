"""One transaction as the audit sees it: rows that it has read, locked and written, until its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from weakref import ref

from sqlalchemy import Connection, TextClause
from sqlalchemy.orm import InstanceState, Mapper, Session

from sa_doclock.testing.instruments import for_update_tables, order_of

from .data_flow import Column, is_claimed, is_computed
from .places import Place, Places
from .rows import Row
from .sent import conditions_of, tests_null

MOST_ROWS: Final = 10_000
"""The number of rows of one transaction that are remembered."""


@dataclass(slots=True)
class Read:
    """One execution of a SELECT.

    :ivar number: of the statement, in the order in which they are sent; 0 before.
    """

    places: Places
    transaction: Transaction
    statement: Any
    names_rows: bool = False  # it locks the rows of the objects that it reads
    tables: frozenset[str] = frozenset()  # those of these objects
    locked: bool = False
    waits: bool = True  # it queues behind others that hold a lock
    number: int = 0
    claims: bool = False  # it takes the first of many rows

    @property
    def place(self) -> Place:
        """The line that has executed it."""
        return self.places[0]

    def locks_rows_of(self, mapper: Mapper[Any]) -> bool:
        """Return whether its lock is on the rows of this class: it may have ``of=``."""
        of = () if isinstance(self.statement, TextClause) else for_update_tables(self.statement)
        tables = [getattr(one, "element", one) for one in of]  # of an alias
        return not tables or any(one is table for one in tables for table in mapper.tables)

    @property
    def lock(self) -> RowLock:
        """The lock that it has on each row."""
        return RowLock(self.place, waits=self.waits, number=self.number)


@dataclass(frozen=True, slots=True)
class RowLock:
    """A lock that the transaction has until its end, or the end of its savepoint.

    :ivar number: of the statement that has taken it.
    """

    place: Place
    by_write: bool = False  # an UPDATE or DELETE of the row
    waits: bool = True
    number: int = 0
    refreshes: bool = False  # what was loaded of the row is read again

    def is_before(self, number: int) -> bool:
        """Return whether what that statement has read cannot have changed since."""
        return self.refreshes or self.number <= number


@dataclass(frozen=True, slots=True)
class Write:
    """A row that a flush has written."""

    kind: str  # "insert", "update" or "delete"
    row: Row
    state: InstanceState[Any]
    mapper: Mapper[Any]
    places: Places  # of the flush
    assigned: Mapping[str, Places]  # where each attribute was set
    read: Read | None
    changed: Mapping[str, Any]  # the new values by attribute
    added: Places | None  # where a new object was given to the session
    refreshed: Mapping[str, Read]  # attributes that were read again later than the row

    def is_fresh(self, name: str, transaction: Transaction) -> bool:
        """Return whether this attribute was read again under a lock."""
        read = self.refreshed.get(name)
        return read is not None and transaction.protects(self.row, read)

    @property
    def place(self) -> Place:
        """The line that has added or changed the object, or else the line of the flush."""
        return (self.added or next(iter(self.assigned.values()), self.places))[0]

    def depends_on(self, read: Read, name: str) -> bool:
        """Return whether the new value of this attribute depends on the row as it was read."""
        assigned = self.assigned.get(name)
        if assigned is None:  # changed in place: the rest of the value is as it was read
            return isinstance(self.changed[name], (dict, list, set))
        mapper = self.mapper
        attributes = frozenset(mapper.column_attrs.keys())
        column = Column(name, frozenset({name}), attributes - {name})
        return self._claims(read, column, assigned) or is_computed(column, assigned, read.place)

    def _claims(self, read: Read, column: Column, assigned: Places) -> bool:
        """Return whether the row was chosen by the value that is replaced, as a job of a queue is."""
        key = str(getattr(self.mapper.column_attrs[column.attribute].columns[0], "key", ""))
        conditions = conditions_of(read.statement)
        if not read.claims or key not in conditions:
            return False
        if len(conditions) > 1 and not order_of(read.statement):
            return False
        return is_claimed(column, assigned, tests_null=tests_null(read.statement, key))


@dataclass(slots=True)
class Waiting:
    """A time in which a transaction executes no statement.

    :ivar thread: that has executed the last one.
    :ivar task: that awaited it; None without asyncio.
    :ivar place: the line that was seen to wait.
    """

    since: float
    thread: int
    task: Any
    place: Place | None = None


class Transaction:
    """A transaction of a session, or of a connection that no session uses."""

    has_wide_lock = False  # of a name, a table, a file: it protects what it is meant for
    has_gate = False  # others queue at that lock before they lock any row
    has_written = False
    changes_schema = False  # a migration, which runs alone
    has_file_lock = False  # SQLite's, which stands for all row locks
    first_lock: Place | None = None
    waiting: Waiting | None = None

    def __init__(self, *, finds_conflicts: bool = False, excludes_inserts: bool = False) -> None:
        self.finds_conflicts = finds_conflicts
        self.excludes_inserts = excludes_inserts  # of rows that a SELECT of it would have found
        self.locks: dict[Row, RowLock] = {}
        self.tables_locked: dict[str, int] = {}  # rows that are not known
        self.locking: list[Read] = []
        self.savepoints: list[int] = []  # the numbers of the statements before
        self.written: set[str] = set()  # tables whose rows were changed or deleted
        self.deleted: set[Row] = set()
        self.inserted: set[Row] = set()
        self.inserted_into: set[str] = set()  # classes, by statements of the program
        self.updated: set[Row] = set()
        self.read_after_lock: set[str] = set()  # classes
        self.stale: dict[Row, Read] = {}
        self.computed_from_stale: set[Row] = set()
        self.at_end: list[Callable[[bool], None]] = []

    def join(self, other: Transaction) -> None:
        """Take over what the transaction of a connection is protected by, and its savepoints."""
        self.savepoints += other.savepoints
        self.finds_conflicts |= other.finds_conflicts
        self.excludes_inserts |= other.excludes_inserts
        self.has_wide_lock |= other.has_wide_lock
        self.has_gate |= other.has_gate
        self.changes_schema |= other.changes_schema
        self.has_file_lock |= other.has_file_lock

    def protects(self, row: Row, read: Read, headers: frozenset[Row] = frozenset()) -> bool:
        """Return whether nobody can have changed this row unseen since it was read.

        The lock of a row that it refers to protects it too: of the header, for a detail.
        """
        if self.has_wide_lock or row in self.inserted:
            return True
        if read.transaction is self and (read.locked or self.finds_conflicts):
            return True
        held = (self.locks.get(one) for one in (row, *headers))
        return any(lock is not None and lock.is_before(read.number) for lock in held)

    def protects_table(self, table: str, number: int) -> bool:
        """Return whether rows of this table were locked before that statement."""
        return table in self.tables_locked and self.tables_locked[table] <= number

    def end_savepoint(self, *, rolled_back: bool) -> None:
        """End the last savepoint; what was locked since is locked no more if it is rolled back."""
        number = self.savepoints.pop() if self.savepoints else None
        if rolled_back and number is not None:
            self.forget_locks(number)

    def forget_locks(self, number: int = -1) -> None:
        """Forget the locks of all statements after that one."""
        self.locks = {row: lock for row, lock in self.locks.items() if lock.number <= number}
        self.tables_locked = {
            table: one for table, one in self.tables_locked.items() if one <= number
        }
        for read in self.locking:
            read.locked &= read.number <= number
        self.locking = [read for read in self.locking if read.locked]

    def has_room(self) -> bool:
        """Return whether it may remember more rows."""
        return len(self.locks) + len(self.inserted) + len(self.updated) < MOST_ROWS

    def later(self, listener: Callable[[bool], None]) -> None:
        """Call the listener at the end, with whether it was committed.

        One that has no room is called now, as if it was not.
        """
        if len(self.at_end) < MOST_ROWS:
            self.at_end.append(listener)
        else:
            listener(False)

    def end(self, *, committed: bool) -> None:
        """Tell those who have waited for the end."""
        for listener in self.at_end:
            listener(committed)
        # Objects that were read in it may live longer.
        for rows in (self.locks, self.inserted, self.updated, self.stale, self.deleted):
            rows.clear()
        for read in self.locking:
            read.locked = False
        self.locking.clear()
        self.at_end.clear()


class SessionSeen:
    """A session: its transaction, and the SELECT that it reads."""

    def __init__(self, session: Session) -> None:
        self.session = ref(session)
        self.transaction = Transaction()
        self.connections: list[Connection] = []
        self.reading: Read | None = None
        self.committed = False
        self.flush: Places | None = None
        """The lines that have called for the flush that is running."""

    def end(self) -> None:
        """End its transaction."""
        self.transaction.end(committed=self.committed)
        self.transaction = Transaction()
        self.connections.clear()
        self.reading, self.committed, self.flush = None, False, None
