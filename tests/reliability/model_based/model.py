"""The expected state: the committed documents, session A with its savepoints, and session B.

Every method says what the call must end with, and does what the call does.  Pure Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy.exc import PendingRollbackError

from sa_doclock import (
    LockMisuse,
    LockNotAvailable,
    LockOptions,
    LockUpgradeRefused,
    UnlockedWrite,
    UnsavedChanges,
    WrongIsolation,
)
from tests.reliability.model_based.engines import (
    Action,
    Doc,
    Failure,
    File,
    ForUpdate,
    Rows,
    SharedRead,
    SnapshotRead,
    after,
)

_STRENGTH = (SnapshotRead, SharedRead, ForUpdate)
Engine = Rows | File


@dataclass(frozen=True)
class Savepoint:
    held: dict[int, LockOptions]
    flushed: dict[int, Doc]
    born: frozenset[int]
    promises: int


@dataclass
class Transaction:
    """Session A, from its first use to commit or rollback."""

    by_begin: bool = False
    held: dict[int, LockOptions] = field(default_factory=dict)
    read: dict[int, Doc] = field(default_factory=dict)  # under a read lock
    flushed: dict[int, Doc] = field(default_factory=dict)
    pending: dict[int, Doc] = field(default_factory=dict)
    unlawful: set[int] = field(default_factory=set)  # changed without their lock
    born: set[int] = field(default_factory=set)
    savepoints: list[Savepoint] = field(default_factory=list)
    forgetful: bool = False  # it let go of objects that lead from a changed part to its header
    dead_at: int | None = None  # how many savepoints were open when a lock failed

    def may_write(self, doc: int) -> bool:
        return self.held.get(doc) is ForUpdate or doc in self.born

    @property
    def unsaved(self) -> set[int]:
        return {*self.pending, *self.unlawful}

    @property
    def held_at_server(self) -> Mapping[int, LockOptions]:
        """A failed statement gives up the locks of its transaction or savepoint at once."""
        if self.dead_at is None:
            return self.held
        return self.savepoints[self.dead_at - 1].held if self.dead_at else {}


class Model:
    def __init__(
        self, docs: dict[int, Doc], engine: Callable[[Callable[[], dict[int, Doc]]], Engine]
    ) -> None:
        self.committed = docs
        self.a: Transaction | None = None
        self.b: dict[int, Doc] | None = None  # what B holds, as B has it
        self.promises: list[int] = []
        self.kept: list[int] = []  # the promises that were
        self.ended_badly = False  # an error after which the program has to roll back
        self._new_engine: Callable[[], Engine] = lambda: engine(lambda: dict(self.committed))
        self.engine = self._new_engine()

    # What is

    @property
    def dead(self) -> bool:
        return self.a is not None and self.a.dead_at is not None

    @property
    def usable(self) -> bool:
        """A may go on, and need not roll back first."""
        return not self.dead and not self.ended_badly

    @property
    def nested(self) -> bool:
        return self.a is not None and bool(self.a.savepoints)

    @property
    def tx(self) -> Transaction:
        """A's transaction, which begins by itself."""
        if self.a is None:
            self.a = Transaction()
        return self.a

    def view(self, doc: int) -> Doc | None:
        """A document that A holds, or has made, as A sees it."""
        known = self.engine.visible()
        if self.a is None:
            return known.get(doc)
        for layer in (self.a.pending, self.a.flushed, self.a.read):
            if doc in layer:
                return layer[doc]
        return known.get(doc)

    @property
    def mine(self) -> set[int]:
        """The documents of which A knows what they are."""
        return set() if self.a is None else {*self.a.held, *self.a.born}

    # What A does

    def lock(self, docs: Sequence[int], lock: LockOptions, *, as_set: bool) -> Failure:
        """As one document after the other, or as a set: all in one statement, checked after."""
        if self.dead:
            return PendingRollbackError
        held = {} if self.a is None else self.a.held
        upgrade = any(lock is ForUpdate and held.get(doc, lock) is not lock for doc in docs)
        wanted = [doc for doc in docs if doc not in held or _weaker(held[doc], lock)]
        if not as_set and upgrade:
            return LockUpgradeRefused
        if not as_set and not wanted:
            return None
        if not as_set and self.a is not None and self.a.unsaved.intersection(wanted):
            self.ended_badly = self.a.forgetful  # the database had to be asked, under the lock
            return UnsavedChanges
        opens = self.a is None
        failure = self.engine.take(wanted, lock, self.b, nested=self.nested)
        if failure is None:
            return self._granted(wanted, lock, upgrade=upgrade)
        if failure is not WrongIsolation and opens:
            self.roll_back()
        elif failure is not WrongIsolation:
            self.tx.dead_at = len(self.tx.savepoints)
        return failure

    def _granted(self, docs: Sequence[int], lock: LockOptions, *, upgrade: bool) -> Failure:
        unsaved = self.tx.unsaved.intersection(docs)
        for doc in docs:
            found = self.view(doc)
            if found is not None:
                self.tx.held.setdefault(doc, lock)
                if lock is not ForUpdate and not self.tx.may_write(doc):
                    self.tx.read[doc] = found
        self.ended_badly = upgrade or bool(unsaved)
        return LockUpgradeRefused if upgrade else UnsavedChanges if unsaved else None

    def read(self) -> None:
        """A plain read."""
        _ = self.tx
        self.engine.read(nested=self.nested)

    def change(self, what: Action, docs: dict[int, Doc]) -> None:
        """Not flushed yet."""
        tx = self.tx
        for doc, changed in after(docs, what).items():
            if doc in self.mine:
                tx.pending[doc] = changed
            if not tx.may_write(doc):
                tx.unlawful.add(doc)

    def create(self, doc: int, made: Doc) -> None:
        """And flush."""
        self.tx.born.add(doc)
        self.tx.pending[doc] = made
        self.flush()
        self.engine.wrote()

    def flush(self) -> Failure:
        if self.a is None or not self.a.unsaved:
            return None
        if self.engine.read_only:
            return WrongIsolation
        if self.a.unlawful:
            return UnlockedWrite
        self.a.flushed |= self.a.pending
        self.a.pending.clear()
        return None

    def begin(self) -> None:
        self.tx.by_begin = True

    def savepoint(self) -> Failure:
        failure = self.flush()
        if failure is None:
            tx = self.tx
            marks = dict(tx.held), dict(tx.flushed), frozenset(tx.born), len(self.promises)
            tx.savepoints.append(Savepoint(*marks))
            self.engine.savepoint()
        return failure

    def roll_back_to(self, number: int) -> None:
        tx = self.tx
        mark = tx.savepoints[number]
        del tx.savepoints[number:], self.promises[mark.promises :]
        tx.held, tx.flushed, tx.born = dict(mark.held), dict(mark.flushed), set(mark.born)
        tx.read = {doc: read for doc, read in tx.read.items() if doc in tx.held}
        tx.pending.clear()
        tx.unlawful.clear()
        tx.dead_at = None

    def release(self, number: int) -> Failure:
        failure = self.flush()
        if failure is None:
            del self.tx.savepoints[number:]
        return failure

    def commit(self) -> Failure:
        if self.dead:
            return PendingRollbackError
        failure = self.flush()
        if failure is None:
            if self.a is not None:
                self.committed = {**self.committed, **self.a.flushed}
            self.kept += self.promises
            self.roll_back()
        return failure

    def save_changes(self) -> Failure:
        if self.dead:
            return PendingRollbackError
        ends = self.a is not None and not self.a.by_begin and not self.a.savepoints
        return self.commit() if ends else self.flush()

    def release_locks(self) -> Failure:
        if self.a is not None and (self.a.by_begin or self.a.savepoints):
            return LockMisuse
        if self.a is not None:
            self.roll_back()
        return None

    def roll_back(self) -> None:
        self.a = None
        self.promises = []
        self.ended_badly = False
        self.engine = self._new_engine()

    # What B does

    def b_lock(self, doc: int) -> Failure:
        """A failure ends B's transaction."""
        held = {} if self.a is None else self.a.held_at_server
        if (self.b is None or doc not in self.b) and self.engine.refuses_b(doc, held):
            self.b = None
            return LockNotAvailable
        self.b = {} if self.b is None else self.b
        if doc in self.committed:
            self.b.setdefault(doc, self.committed[doc])
        return None

    def b_commit(self) -> Failure:
        failed = self.engine.fails_commit_of_b()
        if not failed:
            self.committed = {**self.committed, **(self.b or {})}
        self.b = None
        return LockNotAvailable if failed else None


def _weaker(held: LockOptions, lock: LockOptions) -> bool:
    return _STRENGTH.index(held) < _STRENGTH.index(lock)
