"""Documents as plain values, and the waits between two sessions, without SQLAlchemy."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sa_doclock import LockNotAvailable, LockOptions, SnapshotConflict, WrongIsolation

ForUpdate, SharedRead, SnapshotRead = (
    LockOptions.ForUpdate,
    LockOptions.SharedRead,
    LockOptions.SnapshotRead,
)


# --------------------------------------------------------------------------------------------------
# Documents as plain values, and the operations on them.  Does not use SQLAlchemy.


@dataclass(frozen=True)
class Doc:
    """An order: its total, the values of its lines, and the taxes, each with its line."""

    total: int
    lines: Mapping[int, int] = field(default_factory=dict)
    taxes: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # line, value

    @property
    def consistent(self) -> bool:
        return self.total == sum(self.lines.values())


Docs = Mapping[int, Doc]


class Kind(enum.Enum):
    VALUE = "another value of a line, and total again"
    SHIFT = "value moves between two lines; the header is left alone"
    ADD = "a new line"
    REMOVE = "a line less"
    MOVE = "a line moves to another document"
    NEW_TAX = "a new part of a part"
    TAX = "another value of a tax"
    MOVE_TAX = "a tax moves to a line of another document"


MOVES = (Kind.MOVE, Kind.MOVE_TAX)


class Action(NamedTuple):
    """One change, down to the rows."""

    kind: Kind
    doc: int
    to: int  # of a move
    line: int
    other: int  # the line that gets the value or a tax
    tax: int
    number: int  # a new key or value

    @property
    def touched(self) -> set[int]:
        return {self.doc, self.to} if self.kind in MOVES else {self.doc}


def action(kind: Kind, doc: int, to: int, docs: Docs, pick: int, number: int) -> Action | None:
    """Choose the rows; return None if there are none to choose from."""
    here, there = docs[doc], docs[to]
    lines, others, taxes = sorted(here.lines), sorted(there.lines), sorted(here.taxes)
    if kind is Kind.SHIFT:
        others = lines[1:]
    if kind in MOVES and doc == to:
        return None
    needs = {
        Kind.ADD: True,
        Kind.SHIFT: bool(others),
        Kind.TAX: bool(taxes),
        Kind.MOVE_TAX: bool(taxes and others),
    }
    if not needs.get(kind, bool(lines)):
        return None
    line = lines[0] if kind is Kind.SHIFT else _picked(lines, pick)
    return Action(kind, doc, to, line, _picked(others, pick), _picked(taxes, pick), number)


def _picked(keys: list[int], pick: int) -> int:
    return keys[pick % len(keys)] if keys else 0


def after(docs: Docs, what: Action) -> dict[int, Doc]:
    """Return the documents that the action touches, after the action."""
    lines = {doc: dict(docs[doc].lines) for doc in what.touched}
    taxes = {doc: dict(docs[doc].taxes) for doc in what.touched}
    here, number = lines[what.doc], what.number
    if what.kind is Kind.VALUE:
        here[what.line] = number
    elif what.kind is Kind.SHIFT:
        here[what.line] -= number
        here[what.other] += number
    elif what.kind is Kind.ADD:
        here[number] = number
    elif what.kind in (Kind.REMOVE, Kind.MOVE):
        value = here.pop(what.line)
        gone = {tax: at for tax, at in taxes[what.doc].items() if at[0] == what.line}
        for tax in gone:
            del taxes[what.doc][tax]
        if what.kind is Kind.MOVE:
            lines[what.to][what.line] = value
            taxes[what.to] |= gone
    elif what.kind is Kind.NEW_TAX:
        taxes[what.doc][number] = (what.line, number)
    elif what.kind is Kind.TAX:
        taxes[what.doc][what.tax] = (taxes[what.doc][what.tax][0], number)
    elif what.kind is Kind.MOVE_TAX:
        _, value = taxes[what.doc].pop(what.tax)
        taxes[what.to][what.tax] = (what.other, value)
    return {doc: Doc(sum(lines[doc].values()), lines[doc], taxes[doc]) for doc in what.touched}


# --------------------------------------------------------------------------------------------------
# The waits between two sessions: rows on PostgreSQL, the whole file on SQLite.  Pure Python.
#
# Session A takes any lock, session B only ForUpdate; both refuse to wait.

Failure = type[Exception] | None
Committed = Mapping[int, Doc]


class Rows:
    """PostgreSQL: A's transaction, as the server sees it; a new object for each transaction."""

    def __init__(self, committed: Callable[[], Committed], **_: object) -> None:
        self._committed = committed
        self._connected = False
        self._opened: LockOptions | None = None
        self._snapshot: Committed | None = None

    @property
    def read_only(self) -> bool:
        return self._opened is SnapshotRead

    def visible(self) -> Committed:
        """Return the data that A reads, except for its own writes."""
        return self._committed() if self._snapshot is None else self._snapshot

    def read(self, *, nested: bool) -> None:
        """Execute a plain SELECT of A, in a savepoint or not."""
        self._connected = True

    def take(
        self,
        docs: Collection[int],
        lock: LockOptions,
        held_by_b: Collection[int] | None,
        *,
        nested: bool,
    ) -> Failure:
        """Take A's lock; return the resulting error."""
        if not self._connected:
            self._connected, self._opened = True, lock
            if lock is SnapshotRead:
                self._snapshot = self._committed()
        elif (lock is SnapshotRead) != self.read_only:
            return WrongIsolation
        blocked = lock is not SnapshotRead and any(doc in (held_by_b or ()) for doc in docs)
        return LockNotAvailable if blocked else None

    def can_insert(self, b_is_open: bool) -> bool:
        return not self.read_only

    def wrote(self) -> None:
        self._connected = True

    def savepoint(self) -> None: ...

    def refuses_b(self, doc: int, held_by_a: Mapping[int, LockOptions]) -> bool:
        if doc not in self._committed():
            return False  # B does not see a row that A only inserted
        return held_by_a.get(doc) in (SharedRead, ForUpdate)

    def fails_commit_of_b(self) -> bool:
        return False


class File:
    """SQLite.  The transaction is the lock, and it begins on demand."""

    def __init__(self, committed: Callable[[], Committed], *, journal: bool) -> None:
        self._committed = committed
        self._journal = journal
        self._connected = False
        self._state = "none"  # deferred: BEGIN alone; read: a snapshot; write: the file's lock
        self._opened: LockOptions | None = None
        self._snapshot: Committed | None = None

    @property
    def read_only(self) -> bool:
        return self._opened is SnapshotRead

    def visible(self) -> Committed:
        return self._committed() if self._snapshot is None else self._snapshot

    def read(self, *, nested: bool) -> None:
        self._connect(nested=nested)
        if self._state == "deferred" and self._snapshot is None:
            self._snapshot = self._committed()

    def _connect(self, *, nested: bool) -> None:
        self._connected = True
        if nested and self._state == "none":
            self._state = "deferred"

    def take(
        self,
        docs: Collection[int],
        lock: LockOptions,
        held_by_b: Collection[int] | None,
        *,
        nested: bool,
    ) -> Failure:
        b_writes = held_by_b is not None
        if self._connected:
            self._connect(nested=nested)
        self._connected = True
        if self._state == "none":
            return self._begin(lock, b_writes=b_writes)
        if (lock is SnapshotRead) != self.read_only:
            return WrongIsolation
        if self._state == "read":
            return WrongIsolation if lock is ForUpdate else None
        if self._state == "deferred":
            if b_writes:
                return LockNotAvailable
            if self._snapshot is not None and self._snapshot != self._committed():
                return SnapshotConflict
            self._state, self._snapshot = "write", None
        return None

    def _begin(self, lock: LockOptions, *, b_writes: bool) -> Failure:
        if lock is ForUpdate and b_writes:
            return LockNotAvailable
        self._opened = lock
        self._state = "write" if lock is ForUpdate else "read"
        if lock is not ForUpdate:
            self._snapshot = self._committed()
        return None

    def can_insert(self, b_is_open: bool) -> bool:
        """Return whether an INSERT finds the file free, and earlier reads still true."""
        fresh = self._snapshot is None or self._snapshot == self._committed()
        free = self._state in ("none", "deferred") and fresh and not b_is_open
        return self._state == "write" or free

    def wrote(self) -> None:
        self._connected = True
        self._state, self._snapshot = "write", None

    def savepoint(self) -> None:
        if self._connected:
            self._connect(nested=True)

    def refuses_b(self, doc: int, held_by_a: object) -> bool:
        return self._state == "write"

    def fails_commit_of_b(self) -> bool:
        """With a rollback journal, a commit fails while another session reads."""
        return self._journal and self._snapshot is not None
