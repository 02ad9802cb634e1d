"""The waits between the two sessions: rows on PostgreSQL, the whole file on SQLite.  Pure Python.

Session A takes any lock, session B only ForUpdate; both refuse to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from sa_doclock import LockNotAvailable, LockOptions, SnapshotConflict, WrongIsolation
from tests.reliability.model_based.docs import Doc

Failure = type[Exception] | None
Committed = Mapping[int, Doc]
ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
SnapshotRead = LockOptions.SnapshotRead


class Rows:
    """PostgreSQL.  What A's transaction is to the server; a new one for each transaction."""

    def __init__(self, committed: Callable[[], Committed], **_: object) -> None:
        self._committed = committed
        self._connected = False
        self._opened: LockOptions | None = None
        self._snapshot: Committed | None = None

    @property
    def read_only(self) -> bool:
        return self._opened is SnapshotRead

    def visible(self) -> Committed:
        """Return what A reads, but for what it has written itself."""
        return self._committed() if self._snapshot is None else self._snapshot

    def read(self, *, nested: bool) -> None:
        """A plain SELECT of A, in a savepoint or not."""
        self._connected = True

    def take(
        self,
        docs: Collection[int],
        lock: LockOptions,
        held_by_b: Collection[int] | None,
        *,
        nested: bool,
    ) -> Failure:
        """A locks; returns what that ends with."""
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
            return False  # B does not see a row that A has only inserted
        return held_by_a.get(doc) in (SharedRead, ForUpdate)

    def fails_commit_of_b(self) -> bool:
        return False


class File:
    """SQLite.  The transaction is the lock, and it begins when it is needed."""

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
        """Return whether an INSERT finds the file free, and what was read before it still true."""
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
        """A rollback journal is not committed while somebody reads."""
        return self._journal and self._snapshot is not None
