"""A transaction as the audit sees it: the rows that it read, locked and wrote, until its end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import count
from operator import or_
from typing import Any, Final, NamedTuple
from weakref import ref

from sqlalchemy import TextClause
from sqlalchemy.orm import InstanceState, Mapper, Session

from sa_doclock.testing.instruments import for_update_tables, is_flushing, order_of

from .data_flow import Column, is_claimed, is_computed
from .places import Place, Places, places_of_program
from .rows import ByObject, Row
from .sent import conditions_of, tests_null

MOST_ROWS: Final = 10_000
"""The largest number of rows that the audit remembers for one transaction."""


@dataclass(slots=True)
class Read:
    """One execution of a SELECT.

    :ivar number: the statement's number in the order of sending; 0 before it is sent.
    """

    places: Places
    transaction: int  # the transaction's number
    statement: Any
    names_rows: bool = False  # it locks the rows of the objects that it reads
    tables: frozenset[str] = frozenset()  # the tables of these objects
    locked: bool = False
    waits: bool = True  # it waits for other lock holders
    number: int = 0
    claims: bool = False  # it takes the first of many rows

    @property
    def place(self) -> Place:
        """The program's line that executed it."""
        return self.places[0]

    def locks_rows_of(self, mapper: Mapper[Any]) -> bool:
        """Return whether the lock covers this class's rows: the lock may have ``of=``."""
        of = () if isinstance(self.statement, TextClause) else for_update_tables(self.statement)
        tables = [getattr(one, "element", one) for one in of]  # the table of an alias
        return not tables or any(one is table for one in tables for table in mapper.tables)

    @property
    def lock(self) -> RowLock:
        """The lock that it takes on each row."""
        return RowLock(self.place, self.number, waits=self.waits)


class RowLock(NamedTuple):
    """A lock that the transaction holds until its end, or the end of its savepoint.

    :ivar number: of the statement that took it.
    """

    place: Place
    number: int
    by_write: bool = False  # taken by an UPDATE or DELETE of the row
    waits: bool = True
    refreshes: bool = False  # the lock also refreshes the loaded values of the row

    def is_before(self, number: int) -> bool:
        """Return whether rows read by this statement cannot have changed since."""
        return self.refreshes or self.number <= number


@dataclass(slots=True)
class Write:
    """A row that a flush wrote."""

    kind: str  # "insert", "update" or "delete"
    row: Row
    state: InstanceState[Any]
    mapper: Mapper[Any]
    places: Places  # of the flush; for a new object, where the program added it to the session
    assigned: Mapping[str, Places]  # where the program set each attribute
    read: Read | None
    changed: Mapping[str, Any]  # the new values by attribute
    refreshed: Mapping[str, Read]  # attributes refreshed later than the row

    def is_fresh(self, name: str, transaction: Transaction) -> bool:
        """Return whether this attribute was refreshed under a lock."""
        read = self.refreshed.get(name)
        return read is not None and transaction.protects(self.row, read)

    @property
    def place(self) -> Place:
        """The line that added or changed the object, or else the line of the flush."""
        return (
            self.places[0]
            if self.kind == "insert"
            else next(iter(self.assigned.values()), self.places)[0]
        )

    def depends_on(self, read: Read, name: str) -> bool:
        """Return whether the new value of this attribute depends on the row that was read."""
        assigned = self.assigned.get(name)
        if assigned is None:  # changed in place: the rest of the value is the one read
            return isinstance(self.changed[name], (dict, list, set))
        column = _column(self.mapper, name)
        return self._claims(read, column, assigned) or is_computed(column, assigned, read.place)

    def _claims(self, read: Read, column: Column, assigned: Places) -> bool:
        """Return whether the program chose the row by the value it replaces, as for a job in a queue."""
        if not read.claims:
            return False
        key = str(getattr(self.mapper.column_attrs[column.attribute].columns[0], "key", ""))
        conditions = conditions_of(read.statement)
        if key not in conditions:
            return False
        if len(conditions) > 1 and not order_of(read.statement):
            return False
        return is_claimed(column, assigned, tests_null=tests_null(read.statement, key))


@dataclass(slots=True)
class Waiting:
    """A period in which a transaction executes no statement.

    :ivar thread: the thread that executed the last statement.
    :ivar task: the task that awaited it; None without asyncio.
    :ivar place: the line at which the audit saw it wait.
    """

    since: float
    thread: int
    task: Any
    place: Place | None = None


# Threads: the audit's listeners run in one thread at a time.
_columns: ByObject[Mapper[Any], dict[str, Column]] = ByObject()


def _column(mapper: Mapper[Any], name: str) -> Column:
    columns = _columns.get(ref(mapper))
    if columns is None:
        names = frozenset(mapper.column_attrs.keys())
        columns = {one: Column(one, frozenset({one}), names - {one}) for one in names}
        _columns.put(mapper, columns)
    return columns[name]


# Threads: the audit's listeners run in one thread at a time.
_numbers: Final = count()


class Protection(NamedTuple):
    """The guarantees of an isolation level.

    :ivar finds_conflicts: a row that changed since it was read cannot be overwritten.
    :ivar excludes_inserts: others cannot insert a row that a SELECT would have returned.
    :ivar joins_statements: the same, but only while one statement reads and inserts, or two
        statements of which the first one writes.
    """

    finds_conflicts: bool = False
    excludes_inserts: bool = False
    joins_statements: bool = False


class Transaction:
    """A transaction of a session, or of a connection without a session."""

    has_wide_lock = False  # on a name, a table or a file; assumed to protect everything
    has_gate = False  # others queue at that lock before they lock any row
    has_written = False
    changes_schema = False  # a migration, which runs alone
    has_file_lock = False  # SQLite's lock, which stands for all row locks
    first_lock: Place | None = None
    waiting: Waiting | None = None
    savepoints: tuple[tuple[str, int], ...] = ()  # with the numbers of the preceding statements
    written: frozenset[str] = frozenset()  # tables whose rows it changed or deleted
    inserted_into: frozenset[str] = frozenset()  # classes, by statements of the program
    read_after_lock: frozenset[str] = frozenset()  # classes
    computed_from_stale: frozenset[Row] = frozenset()

    def __init__(self, protection: Protection = Protection()) -> None:  # noqa: B008  # immutable
        self.protection = protection
        self.number = next(_numbers)
        self.locks: dict[Row, RowLock] = {}
        self.tables_locked: dict[str, int] = {}  # tables locked without known rows
        self.locking: list[Read] = []
        self.deleted: set[Row] = set()
        self.inserted: set[Row] = set()
        self.updated: set[Row] = set()
        self.stale: dict[Row, Read] = {}
        self.at_end: list[Callable[[bool], None]] = []

    def protect(self, more: Protection) -> None:
        """Add protections that the database guarantees."""
        self.protection = Protection(*map(or_, self.protection, more))

    def join(self, other: Transaction) -> None:
        """Take over the protections and savepoints of a connection's transaction."""
        self.savepoints += other.savepoints
        self.protect(other.protection)
        self.has_wide_lock |= other.has_wide_lock
        self.has_gate |= other.has_gate
        self.changes_schema |= other.changes_schema
        self.has_file_lock |= other.has_file_lock

    def protects(self, row: Row, read: Read, headers: Collection[Row] = ()) -> bool:
        """Return whether no other transaction can have changed this row unseen since it was read.

        A lock on a row that it references, such as the header of a detail, also protects it.
        """
        if self.has_wide_lock or row in self.inserted:
            return True
        if read.transaction == self.number and (read.locked or self.protection.finds_conflicts):
            return True
        held = [self.locks.get(one) for one in (row, *headers)] if self.locks else ()
        return any(lock is not None and lock.is_before(read.number) for lock in held)

    def protects_table(self, table: str, number: int) -> bool:
        """Return whether rows of this table were locked before that statement."""
        return table in self.tables_locked and self.tables_locked[table] <= number

    def end_savepoint(self, name: str, *, rolled_back: bool) -> None:
        """End a savepoint and its inner savepoints; a rollback releases their locks."""
        names = [one for one, _ in self.savepoints]
        if name in names:
            position = len(names) - 1 - names[::-1].index(name)
            if rolled_back:
                self.forget_locks(self.savepoints[position][1])
            self.savepoints = self.savepoints[:position]

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
        """Return whether the transaction may remember more rows."""
        return len(self.locks) + len(self.inserted) + len(self.updated) < MOST_ROWS

    def later(self, listener: Callable[[bool], None]) -> None:
        """Call the listener at the end, with whether the transaction committed.

        Without room, call it at once, as after a rollback.
        """
        if len(self.at_end) < MOST_ROWS:
            self.at_end.append(listener)
        else:
            listener(False)

    def end(self, *, committed: bool) -> None:
        """Notify the listeners of the end."""
        for listener in self.at_end:
            listener(committed)
        for read in self.locking:
            read.locked = False
        self.at_end = []  # they reference this transaction


class ConnectionSeen:
    """A connection: the session that uses it, or without one its own transaction."""

    __slots__ = ("transaction", "user")

    def __init__(self) -> None:
        self.user: SessionSeen | None = None
        self.transaction: Transaction | None = None  # created at the first statement


class SessionSeen:
    """A session: its transaction, and the SELECT that it is reading."""

    def __init__(self, session: ref[Session]) -> None:
        self.session = session
        self.transaction = Transaction()
        self.connections: list[ConnectionSeen] = []
        self.reading: Read | None = None
        self.committed = False
        self.flush: Places | None = None
        """The lines that called the running flush; None until they are read."""

    def lines_of_flush(self) -> Places:
        """Return the lines that caused the write of an object."""
        if self.flush == ():
            self.flush = places_of_program()
        return self.flush or places_of_program()

    def is_in_flush(self) -> bool:
        """Return whether its connections' statements come from a flush."""
        session = None if self.flush is None else self.session()
        return session is not None and is_flushing(session)
