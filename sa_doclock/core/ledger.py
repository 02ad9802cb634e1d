"""The locks of a transaction, which of them a rollback to a savepoint releases, and the places of
their rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import islice
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Mapper, Session, class_mapper

from ..dialects import SCHEMA_OPTION
from ..dialects.base import LockStrategy
from ..errors import LockMisuse, LockOrderViolation, LockUpgradeRefused
from ..events import ReleasedLock
from ..keys import DocumentKey, LockedName, public_key
from ..options import LockOptions, base_of, held_lock, lock_label
from .lock_request import LockCalls

NamedKey = tuple[Engine, str]
"""The engine on whose server a key is locked, and the key."""

LedgerMark = tuple[int, int, int, int]
"""The numbers of documents, named locks, strengthened locks and new documents at some moment."""

_NO_LOCKS: Final[LedgerMark] = (0, 0, 0, 0)  # the mark before the first lock of a transaction

_STRENGTH = (
    LockOptions.SnapshotRead,
    LockOptions.SharedRead,
    LockOptions.ForUpdate | LockOptions.NoKey,
    LockOptions.ForUpdate,
)


Schemas = Mapping["str | None", "str | None"]

_UNTRANSLATED: Final[Schemas] = MappingProxyType({})


class RowPlace(NamedTuple):
    """The place of rows: two tenants may each have an order 1, and so may two databases.

    :ivar schemas: the ``schema_translate_map`` in force.
    """

    engine: Engine
    schemas: Schemas

    def is_same(self, other: RowPlace) -> bool:
        """Return whether the row of a table and key at one place is that at the other."""
        same_database = self.engine is other.engine or self.engine.pool is other.engine.pool
        return same_database and self.schemas == other.schemas

    def __str__(self) -> str:
        """Return the text for errors."""
        where = self.engine.url.render_as_string(hide_password=True)
        if not self.schemas:
            return where
        names = (
            f"{'the default schema' if name is None else name} -> {other or 'the default schema'}"
            for name, other in self.schemas.items()
        )
        return f"{where} with schema_translate_map {', '.join(names)}"


def place_of(bind: Engine | Connection, *options: Mapping[str, Any]) -> RowPlace:
    """Return the place of the rows that a statement with these execution options reads or writes."""
    schemas = bind.get_execution_options().get(SCHEMA_OPTION)
    for option in options:
        schemas = option.get(SCHEMA_OPTION, schemas)
    if not schemas:
        return RowPlace(bind.engine, _UNTRANSLATED)
    # A copy, because SQLAlchemy adds "_none" to the program's map while it renders a statement.
    return RowPlace(bind.engine, {name: to for name, to in schemas.items() if name != "_none"})


def document_of(place: DocumentKey | NamedKey) -> tuple[type[Any] | None, Any]:
    """Return the class and the key of a document; for a named lock, None and its name."""
    if isinstance(place[0], Engine):
        return None, place[1]
    return place[0], public_key(place[1])


class Ledger:
    """The documents that one transaction of the server may write: those locked and those inserted.

    A ledger is never emptied: when the transaction ends, the session drops it, whoever ended it.

    :param ranks: the declared order of their classes; a class without a rank may come anywhere.
    :param calls: the calls to which they are granted.
    :ivar releases: how often locks were released.
    :ivar places: the held documents and named locks, each with the time of its grant.  Never fewer
        than are held: an interruption may leave one without further entries.
    :ivar unread: documents of which the session may have rows from before the lock.
    :ivar classes: the root classes of the held documents.
    :ivar new: the documents whose headers the transaction has inserted, in the order of the
        INSERTs.
    """

    releases = 0

    def __init__(self, ranks: Mapping[type[Any], int], calls: LockCalls) -> None:
        self.places: dict[DocumentKey | NamedKey, float] = {}
        self._held: dict[DocumentKey, LockOptions] = {}
        self.unread: set[DocumentKey] = set()
        self._strengthened: list[tuple[DocumentKey, LockOptions]] = []  # each with its earlier lock
        self._keys: dict[NamedKey, LockOptions] = {}
        self._ranks = ranks
        self.classes: dict[type[Any], None] = {}
        self.held: Mapping[DocumentKey, LockOptions] = MappingProxyType(self._held)
        self.new: dict[DocumentKey, None] = {}
        self._new_classes: set[type[Any]] = set()
        self._places_of_classes: dict[type[Any], RowPlace] = {}
        self._calls = calls

    def renewed(self) -> Ledger:
        """Return the empty ledger of the next transaction."""
        return Ledger(self._ranks, self._calls)

    def is_empty(self) -> bool:
        """Return whether nothing in it ends with the transaction."""
        return not (self.places or self.new)

    def counts_on_transaction(self, strategy: LockStrategy | None) -> bool:
        """Return whether anything in it ends with a transaction of this database."""
        named_locks = None if strategy is None else strategy.named_locks
        return bool(self._held or self.new) or (
            named_locks is not None and named_locks.end_with_transaction and bool(self._keys)
        )

    def check_order(self, root: Mapper[Any]) -> None:
        """:raises LockOrderViolation: a document that comes later in the order is held."""
        rank = self._ranks.get(root.class_)
        ranked = self._ranks.keys() & self.classes.keys()
        if rank is None or not ranked:
            return
        last = max(ranked, key=self._ranks.__getitem__)
        if self._ranks[last] > rank:
            raise LockOrderViolation(
                f"lock_order has {root.class_.__name__} before {last.__name__}, but this transaction "
                f"has locked {last.__name__} first: lock {root.class_.__name__} before it"
            )

    def add_new(self, key: DocumentKey) -> None:
        """Record a document whose header the transaction has inserted."""
        self.new[key] = None
        self._new_classes.add(key[0])

    def place_of(self, entity: type[Any]) -> RowPlace | None:
        """Return where the held or new documents of this class are, or None without such documents."""
        known = entity in self.classes or entity in self._new_classes
        return self._places_of_classes.get(entity) if known else None

    def check_place(
        self, root: Mapper[Any], bind: Engine | Connection, *options: Mapping[str, Any]
    ) -> None:
        """Record where rows of this class are locked or inserted; see :func:`place_of`.

        :raises LockMisuse: others of them are locked elsewhere, where (class, key) names another
            row.
        """
        known = self._places_of_classes.get(root.class_)
        translated = options or bind.get_execution_options().get(SCHEMA_OPTION)
        if known is not None and known.engine is bind.engine and not (known.schemas or translated):
            return  # the usual case, without a call
        place = place_of(bind, *options) if translated else RowPlace(bind.engine, _UNTRANSLATED)
        if known is None or not known.is_same(place):
            if self._places_of_classes:
                self._refuse_other_place(root, place)
            self._places_of_classes[root.class_] = place

    def _refuse_other_place(self, root: Mapper[Any], place: RowPlace) -> None:
        for other in self._places_of_classes:  # a second class has the same rows
            held = self.place_of(other)
            if held is None or held.is_same(place):
                continue
            if class_mapper(other).local_table is not root.local_table:
                continue
            raise LockMisuse(
                f"this transaction holds rows of {other.__name__} in {held}, and cannot lock others in "
                f"{place}: the same key names another row there. Use one session, or one transaction, for each"
            )

    def covers(self, key: DocumentKey, lock: LockOptions) -> bool:
        """Return whether the document is held at least as strongly.

        :raises LockUpgradeRefused: it is held by a read lock, and ForUpdate was requested.
        """
        held = self._held.get(key)
        return held is not None and is_as_strong(held, lock) and key not in self.unread

    def is_fresh(self, key: DocumentKey) -> bool:
        """Return whether the document is held, and was read after the grant."""
        return key in self._held and key not in self.unread

    def record_unread(self, key: DocumentKey, lock: LockOptions) -> None:
        """Record a lock without a complete fresh read; refuses nothing."""
        held = self._held.get(key)
        if held is None:
            self.record(key, lock)
            self.unread.add(key)
        elif strength_of(held) < strength_of(lock):
            self._strengthen(key, held, lock)

    def record(self, key: DocumentKey, lock: LockOptions) -> None:
        """Record a granted lock; a stronger held lock stays."""
        held = self._held.get(key)
        if held is None:
            self.places[key] = time.monotonic()
            self._held[key] = held_lock(lock)
            self.classes[key[0]] = None
            if self._calls.current is not None:
                self._calls.current.new.append(key)
            return
        if self.unread:
            self.unread.discard(key)
        if held is not LockOptions.ForUpdate and not is_as_strong(held, lock):
            self._strengthen(key, held, lock)

    def _strengthen(self, key: DocumentKey, held: LockOptions, lock: LockOptions) -> None:
        self._strengthened.append((key, held))
        self._held[key] = held_lock(lock)
        self._note_granted(key)

    def _note_granted(self, lock: DocumentKey | LockedName) -> None:
        call = self._calls.current
        if call is not None:
            call.new.append(lock)

    def covers_key(self, key: NamedKey, lock: LockOptions) -> bool:
        """Return the same for a named lock.

        :raises LockUpgradeRefused: it is held by a shared lock.
        """
        held = self._keys.get(key)
        return held is not None and is_as_strong(held, lock)

    def record_key(self, key: NamedKey, lock: LockOptions) -> None:
        """Record a granted named lock."""
        self.places[key] = time.monotonic()
        self._keys[key] = base_of(lock)
        self._note_granted((None, (key[1],)))

    def held_for(self) -> float:
        """Return the seconds since the first held lock; 0 without locks."""
        since = next(iter(self.places.values()), None)
        return 0.0 if since is None else time.monotonic() - since

    def has(self, place: DocumentKey | NamedKey) -> bool:
        """Return whether this document or named lock is held, even after an interruption."""
        return place in self._held or place in self._keys

    def lock_at(self, place: DocumentKey | NamedKey) -> LockOptions | None:
        """Return the lock on this document or name, or None."""
        locks: dict[Any, LockOptions] = {**self._held, **self._keys}
        return locks.get(place)

    def first(self) -> tuple[DocumentKey | NamedKey, LockOptions]:
        """Return the document or named lock that is held for longest, and its lock."""
        locks: dict[Any, LockOptions] = {**self._held, **self._keys}
        place = next(place for place in self.places if place in locks)
        return place, locks[place]

    def may_write(self, key: DocumentKey) -> bool:
        """Return whether the document is held ForUpdate, or is new in this transaction."""
        held = self._held.get(key)
        return (held is not None and base_of(held) is LockOptions.ForUpdate) or key in self.new

    def mark(self) -> LedgerMark:
        """Return the current state, for a later :meth:`roll_back_to`."""
        return len(self._held), len(self._keys), len(self._strengthened), len(self.new)

    def roll_back_to(self, mark: LedgerMark) -> list[ReleasedLock]:
        """Forget the locks taken since, and return them.

        PostgreSQL releases those locks; InnoDB may keep them, which is harmless.
        """
        while len(self._strengthened) > mark[2]:
            key, before = self._strengthened.pop()
            self._held[key] = before
        released = self.released(mark)
        locks: tuple[dict[Any, Any], ...] = self._held, self._keys
        for some, length in zip(locks, mark[:2], strict=True):
            while len(some) > length:
                key, _ = some.popitem()
                self.places.pop(key, None)
        if len(self.new) > mark[3]:
            while len(self.new) > mark[3]:
                self.new.popitem()
            self._new_classes = {entity for entity, _ in self.new}
        self.releases += 1
        self.unread.intersection_update(self._held)
        self.classes = dict.fromkeys(entity for entity, _ in self._held)
        return released

    def released(self, mark: LedgerMark = _NO_LOCKS) -> list[ReleasedLock]:
        """Return the locks taken since, as of their release now."""
        documents, keys, *_ = mark
        now, since = time.monotonic(), self.places
        held = islice(self._held.items(), documents, None)
        named = islice(self._keys.items(), keys, None)
        return [
            *[ReleasedLock(key, lock, now - since[key]) for key, lock in held],
            *[ReleasedLock((None, (key[1],)), lock, now - since[key]) for key, lock in named],
        ]


ledger_of: Final[Callable[[Session], Ledger]] = attrgetter("_context.transaction.ledger")
"""Return the ledger of a session's transaction."""


def strength_of(lock: LockOptions) -> int:
    """Return a number that is greater for a lock that excludes more; for locks that can be held."""
    return _STRENGTH.index(held_lock(lock))


def is_as_strong(held: LockOptions, lock: LockOptions) -> bool:
    """Return whether a held lock includes the requested one.

    :raises LockUpgradeRefused: a read lock is held, and ForUpdate was requested.
    """
    wanted = base_of(lock)
    if wanted is LockOptions.ForUpdate and base_of(held) is not LockOptions.ForUpdate:
        raise LockUpgradeRefused(
            f"this transaction already holds it by {lock_label(held)}, and two sessions that "
            "upgrade to ForUpdate deadlock: take ForUpdate first"
        )
    return _STRENGTH.index(held) >= _STRENGTH.index(held_lock(lock))
