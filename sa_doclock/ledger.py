"""What this transaction holds, and what a rollback to a savepoint gives up."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from weakref import WeakKeyDictionary

from sqlalchemy.orm import SessionTransaction

from .documents import DocumentKey
from .errors import LockUpgradeRefused
from .options import LockOptions, base_of, spelled

_STRENGTH = (LockOptions.SnapshotRead, LockOptions.SharedRead, LockOptions.ForUpdate)


class Ledger:
    """The documents locked by one session's transaction, in the order of locking."""

    def __init__(self) -> None:
        self._held: dict[DocumentKey, LockOptions] = {}
        self._savepoints: WeakKeyDictionary[SessionTransaction, int] | None = None
        self.held: Mapping[DocumentKey, LockOptions] = MappingProxyType(self._held)

    def covers(self, key: DocumentKey, lock: LockOptions) -> bool:
        """Whether the document is held as strongly as that, or more.

        :raises LockUpgradeRefused: it is held by a read lock, and ForUpdate was asked for.
        """
        held = self._held.get(key)
        if held is None:
            return False
        wanted = base_of(lock)
        if wanted is LockOptions.ForUpdate and held is not LockOptions.ForUpdate:
            raise LockUpgradeRefused(
                f"it is held by {spelled(held)} in this transaction; two sessions that go on to "
                "ForUpdate deadlock, so take ForUpdate first"
            )
        return _STRENGTH.index(held) >= _STRENGTH.index(wanted)

    def record(self, key: DocumentKey, lock: LockOptions) -> None:
        """Note a lock that was granted; one that is held more strongly stays so."""
        self._held.setdefault(key, base_of(lock))

    def open_savepoint(self, savepoint: SessionTransaction) -> None:
        """Remember what was held when the savepoint was set."""
        if self._savepoints is None:
            self._savepoints = WeakKeyDictionary()
        self._savepoints[savepoint] = len(self._held)

    def roll_back_to(self, savepoint: SessionTransaction) -> None:
        """Forget what was locked since: PostgreSQL gives those locks up, InnoDB may keep them."""
        before = 0 if self._savepoints is None else self._savepoints.get(savepoint, 0)
        while len(self._held) > before:
            self._held.popitem()

    def clear(self) -> None:
        """Nothing is held any more."""
        self._held.clear()
        self._savepoints = None
