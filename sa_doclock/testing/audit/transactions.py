"""One transaction as the audit sees it: rows that it has read, locked and written, until its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import ref

from sqlalchemy import Connection, TextClause
from sqlalchemy.orm import InstanceState, Mapper, Session

from ...core.sqlalchemy_internals import for_update_tables
from .data_flow import is_computed
from .places import Place, Places
from .rows import Row
from .sent import conditions_of

MOST_ROWS: Final = 10_000
"""The number of rows of one transaction that are remembered."""


@dataclass(slots=True)
class Read:
    """One execution of a SELECT."""

    places: Places
    transaction: Transaction
    statement: Any
    names_rows: bool  # it reads objects
    locked: bool = False
    waits: bool = True  # it queues behind others that hold a lock

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
        return RowLock(self.place, waits=self.waits)


@dataclass(frozen=True, slots=True)
class RowLock:
    """A lock that the transaction has until its end."""

    place: Place
    by_write: bool = False  # an UPDATE or DELETE of the row
    waits: bool = True


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
        column = mapper.column_attrs[name].columns[0]
        if getattr(column, "key", None) in conditions_of(read.statement):
            return True
        keys = frozenset(mapper.get_property_by_column(one).key for one in mapper.primary_key)
        columns = frozenset(mapper.column_attrs.keys())
        return is_computed(name, assigned, read.place, columns, keys)


@dataclass(slots=True, eq=False)
class Transaction:
    """A transaction of a session, or of a connection that no session uses."""

    finds_conflicts: bool = False
    has_wide_lock: bool = False  # of a name, a table, a file: it protects what it is meant for
    has_gate: bool = False  # others queue at that lock before they lock any row
    has_written: bool = False
    changes_schema: bool = False  # a migration, which runs alone
    has_file_lock: bool = False  # SQLite's, which stands for all row locks
    locks: dict[Row, RowLock] = field(default_factory=dict)
    tables_locked: set[str] = field(default_factory=set)  # rows of them, which are not known
    inserted: set[Row] = field(default_factory=set)
    inserted_into: set[str] = field(default_factory=set)  # classes, by statements of the program
    updated: set[Row] = field(default_factory=set)
    read_after_lock: set[str] = field(default_factory=set)  # classes
    stale: dict[Row, Read] = field(default_factory=dict)
    computed_from_stale: set[Row] = field(default_factory=set)
    first_lock: Place | None = None
    idle_since: float | None = None
    at_end: list[Callable[[bool], None]] = field(default_factory=list)

    def join(self, other: Transaction) -> None:
        """Take over what the transaction of a connection is protected by."""
        self.finds_conflicts |= other.finds_conflicts
        self.has_wide_lock |= other.has_wide_lock
        self.has_gate |= other.has_gate
        self.changes_schema |= other.changes_schema
        self.has_file_lock |= other.has_file_lock

    def protects(self, row: Row, read: Read, headers: frozenset[Row] = frozenset()) -> bool:
        """Return whether nobody can have changed this row unseen since it was read.

        The lock of a row that it refers to protects it too: of the header, for a detail.
        """
        if read.locked or self.has_wide_lock or row in self.inserted:
            return True
        if self.finds_conflicts and read.transaction is self:
            return True
        return not self.locks.keys().isdisjoint({row, *headers})

    def note_row_locks(self, tables: frozenset[str], reading: Read | None, place: Place) -> None:
        """Note that a statement locks rows; the objects that it loads tell which, if it loads any."""
        self.first_lock = self.first_lock or place
        if reading is not None and reading.names_rows:
            reading.locked = True
        else:
            self.tables_locked |= tables

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
        for rows in (self.locks, self.inserted, self.updated, self.stale):
            rows.clear()
        self.at_end.clear()


class SessionSeen:
    """A session: its transaction, and the SELECT that it reads."""

    def __init__(self, session: Session) -> None:
        self.session = ref(session)
        self.transaction = Transaction()
        self.connections: list[Connection] = []
        self.reading: Read | None = None
        self.committed = False

    def end(self) -> None:
        """End its transaction."""
        self.transaction.end(committed=self.committed)
        self.transaction = Transaction()
        self.connections.clear()
        self.reading, self.committed = None, False
