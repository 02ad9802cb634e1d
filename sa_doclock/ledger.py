"""What this transaction holds, and what a rollback to a savepoint gives up."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any

from sqlalchemy.orm import Mapper

from .documents import DocumentKey, mapper_of, remembered, root_of
from .errors import LockOrderViolation, LockUpgradeRefused
from .events import ReleasedLock
from .options import LockOptions, base_of, spelled

_STRENGTH = (LockOptions.SnapshotRead, LockOptions.SharedRead, LockOptions.ForUpdate)


@remembered
def ranks_of(lock_order: tuple[Any, ...]) -> Mapping[type[Any], int]:
    """The place of each root class in the declared order of locking.

    :raises TypeError: one of them is not a mapped class.
    :raises ValueError: a class, or two of one hierarchy, come twice.
    """
    ranks: dict[type[Any], int] = {}
    for rank, entity in enumerate(lock_order):
        root = root_of(mapper_of(entity)).class_
        if root in ranks:
            raise ValueError(f"lock_order names {root.__name__} twice, or a subclass beside it")
        ranks[root] = rank
    return ranks


class Ledger:
    """The documents locked by one session's transaction, in the order of locking.

    :param ranks: the declared order of their classes; a class without a rank has any place.
    """

    def __init__(self, ranks: Mapping[type[Any], int]) -> None:
        self._held: dict[DocumentKey, LockOptions] = {}
        self._since: dict[DocumentKey, float] = {}
        self._born: dict[DocumentKey, None] = {}
        self._ranks = ranks
        self.held: Mapping[DocumentKey, LockOptions] = MappingProxyType(self._held)
        self.asked = False  # a lock is being taken, and not yet recorded

    def check_order(self, root: Mapper[Any]) -> None:
        """:raises LockOrderViolation: a document that comes later in the order is held."""
        rank = self._ranks.get(root.class_)
        if rank is None:
            return
        for entity, _ in reversed(self._held):  # which are in order themselves
            held = self._ranks.get(entity)
            if held is not None:
                if held > rank:
                    raise LockOrderViolation(
                        f"{entity.__name__} is held already, and lock_order has "
                        f"{root.class_.__name__} before {entity.__name__}: lock it first"
                    )
                return

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
        if key not in self._held:
            self._held[key] = base_of(lock)
            self._since[key] = time.monotonic()

    def bear(self, key: DocumentKey) -> None:
        """Note a document whose header this transaction has inserted."""
        self._born[key] = None

    def may_write(self, key: DocumentKey) -> bool:
        """Whether the document is held ForUpdate, or nobody else can see it yet."""
        return self._held.get(key) is LockOptions.ForUpdate or key in self._born

    def mark(self) -> tuple[int, int]:
        """How much there is now, for the rollback of a savepoint that is being set."""
        return len(self._held), len(self._born)

    def since(self, mark: tuple[int, int]) -> Iterable[DocumentKey]:
        """The documents that were locked since then."""
        return list(islice(self._held, mark[0], None))

    def roll_back_to(self, mark: tuple[int, int]) -> list[ReleasedLock]:
        """Forget what was locked since: PostgreSQL gives those locks up, InnoDB may keep them."""
        held, born = mark
        released = self._released(held)
        while len(self._held) > held:
            self._held.popitem()
            self._since.popitem()
        while len(self._born) > born:
            self._born.popitem()
        return released

    def clear(self) -> list[ReleasedLock]:
        """Nothing is held any more."""
        released = self._released(0)
        self._held.clear()
        self._since.clear()
        self._born.clear()
        return released

    def _released(self, start: int) -> list[ReleasedLock]:
        now = time.monotonic()
        locks = islice(self._held.items(), start, None)
        return [ReleasedLock(key, lock, now - self._since[key]) for key, lock in locks]
