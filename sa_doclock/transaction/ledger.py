"""The locks that a transaction holds, and those that a rollback to a savepoint gives up."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.orm import Mapper

from ..documents import mapper_cache, mapper_of, root_of
from ..errors import LockOrderViolation, LockUpgradeRefused
from ..events import ReleasedLock
from ..lock_info import DocumentKey, LockedName
from ..options import LockOptions, base_of, lock_label

NamedKey = tuple[Engine, str]
"""The engine on whose server a key is locked, and the key."""

Mark = tuple[int, int, int]
"""The numbers of documents, inserted headers and named locks at a moment."""

_STRENGTH = (LockOptions.SnapshotRead, LockOptions.SharedRead, LockOptions.ForUpdate)


@mapper_cache
def ranks_of(lock_order: tuple[Any, ...]) -> Mapping[type[Any], int]:
    """Return the place of each root class in the declared order of locking.

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
    :param has_release_listener: returns whether anybody is told of released locks.
    """

    def __init__(
        self, ranks: Mapping[type[Any], int], has_release_listener: Callable[[], bool]
    ) -> None:
        self._has_release_listener = has_release_listener
        self._held: dict[DocumentKey, LockOptions] = {}
        self._since: dict[DocumentKey | NamedKey, float] = {}
        self._inserted: dict[DocumentKey, None] = {}
        self._keys: dict[NamedKey, LockOptions] = {}
        self._ranks = ranks
        self.held: Mapping[DocumentKey, LockOptions] = MappingProxyType(self._held)
        self.on_release: Callable[[], None] | None = None  # called when locks were given up
        self.new: list[DocumentKey | LockedName] | None = None
        """The locks granted to the call that is under way; None between two calls."""

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
        """Return whether the document is held as strongly as that, or more.

        :raises LockUpgradeRefused: it is held by a read lock, and ForUpdate was asked for.
        """
        held = self._held.get(key)
        return held is not None and is_as_strong(held, lock)

    def record(self, key: DocumentKey, lock: LockOptions) -> None:
        """Note a lock that was granted; one that is held more strongly stays so."""
        if key not in self._held:
            self._held[key] = base_of(lock)
            self._since[key] = time.monotonic()
            if self.new is not None:
                self.new.append(key)

    def covers_key(self, key: NamedKey, lock: LockOptions) -> bool:
        """Return the same of a named lock.

        :raises LockUpgradeRefused: it is held by a shared lock.
        """
        held = self._keys.get(key)
        return held is not None and is_as_strong(held, lock)

    def record_key(self, key: NamedKey, lock: LockOptions) -> None:
        """Note a named lock that was granted."""
        self._keys[key] = base_of(lock)
        self._since[key] = time.monotonic()
        if self.new is not None:
            self.new.append((None, (key[1],)))

    def has(self, place: Hashable) -> bool:
        """Return whether this document, or this named lock, is held."""
        return place in self._held or place in self._keys

    @property
    def empty(self) -> bool:
        """True if there is no lock that the end of the transaction would release."""
        return not self._held and not self._keys

    def add_inserted(self, key: DocumentKey) -> None:
        """Note a document whose header this transaction has inserted."""
        self._inserted[key] = None

    def may_write(self, key: DocumentKey) -> bool:
        """Return whether the document is held ForUpdate, or is new in this transaction."""
        return self._held.get(key) is LockOptions.ForUpdate or key in self._inserted

    def mark(self) -> Mark:
        """Return how much there is now, for a later :meth:`roll_back_to`."""
        return len(self._held), len(self._inserted), len(self._keys)

    def roll_back_to(self, mark: Mark) -> list[ReleasedLock]:
        """Forget what was locked since, and return it.

        PostgreSQL gives those locks up; InnoDB may keep them, which does no harm.
        """
        released = self._released(mark)
        books: tuple[dict[Any, Any], ...] = self._held, self._inserted, self._keys
        for book, length in zip(books, mark, strict=True):
            while len(book) > length:
                self._since.pop(book.popitem()[0], None)
        if self.on_release is not None:
            self.on_release()
        return released

    def clear(self) -> list[ReleasedLock]:
        """Forget everything, and return what was held."""
        released = self._released((0, 0, 0)) if self._since else []
        self._held.clear()
        self._inserted.clear()
        self._keys.clear()
        self._since.clear()
        if self.on_release is not None:
            self.on_release()
        return released

    def _released(self, mark: Mark) -> list[ReleasedLock]:
        if not self._has_release_listener():
            return []
        now = time.monotonic()
        return [
            ReleasedLock(document, lock, now - self._since[place])
            for document, lock, place in self._locked_since(mark)
        ]

    def _locked_since(
        self, mark: Mark
    ) -> Iterator[tuple[DocumentKey | LockedName, LockOptions, DocumentKey | NamedKey]]:
        documents, _, keys = mark
        for document, lock in islice(self._held.items(), documents, None):
            yield document, lock, document
        for named, lock in islice(self._keys.items(), keys, None):
            yield (None, (named[1],)), lock, named


def is_as_strong(held: LockOptions, lock: LockOptions) -> bool:
    """Return whether a lock that is held gives what was asked for.

    :raises LockUpgradeRefused: a read lock is held, and ForUpdate was asked for.
    """
    wanted = base_of(lock)
    if wanted is LockOptions.ForUpdate and held is not LockOptions.ForUpdate:
        raise LockUpgradeRefused(
            f"it is held by {lock_label(held)} in this transaction; two sessions that go on to "
            "ForUpdate deadlock, so take ForUpdate first"
        )
    return _STRENGTH.index(held) >= _STRENGTH.index(wanted)
