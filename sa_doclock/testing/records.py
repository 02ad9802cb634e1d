"""recorded_locks() and assert_locked(): the locks that the sessions of this process take."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakKeyDictionary

from sqlalchemy.orm import Session

from ..core.documents import document_key, identity_of, mapper_of
from ..core.ledger import strength_of
from ..core.session import check_block_lock
from ..errors import LockFailed, outcome_of
from ..events import ReleasedLock
from ..keys import DocumentKey, LockedName, document_label, public_key
from ..options import LockOptions, is_row_lock, lock_label
from ..session import LockingSession
from .listening import listening

_EVENTS: Final = ("lock_acquired", "lock_failed", "locks_released")
_GRANTED: Final = "granted"


@dataclass(eq=False, slots=True)
class LockRecord:
    """One lock that a session of this process took, or that the database refused.

    :ivar entity: the root mapped class, as in ``held_locks``; None for a named lock, and for an
        error that names no document.
    :ivar ident: the primary key, a scalar or a tuple; or the name.
    :ivar lock: the requested lock with its modifiers; None for an error of a flush or commit.
    :ivar outcome: ``"granted"``, ``"not_available"``, ``"deadlock"``, ``"snapshot_conflict"``, or
        the name of another error in this style.
    :ivar waited: the seconds that the call took; None for an error of a flush or commit.
    :ivar held: the seconds from the grant to the end of the lock; None while it is held.
    :ivar ended: ``"committed"``, ``"rolled back"`` or ``"lost"``; None while it is held.
    """

    entity: type[Any] | None
    ident: Any
    lock: LockOptions | None
    outcome: str
    waited: float | None
    held: float | None = None
    ended: str | None = None
    _granted_at: float = field(default_factory=time.monotonic, init=False, repr=False)

    def __str__(self) -> str:
        lock = "" if self.lock is None else f" {lock_label(self.lock)}"
        end = self.outcome if self.ended is None else f"{self.outcome}, {self.ended}"
        return f"{document_label(self.entity, self.ident)}{lock}: {end}"


@contextmanager
def recorded_locks() -> Iterator[Sequence[LockRecord]]:
    """Record the locks that the sessions of this process take in the block.

    The context manager yields a sequence of :class:`LockRecord`, in the order of the grants, which
    grows while the block runs. A lock that the transaction already holds has no second record, unless
    the second is stronger. The records are of LockingSessions and AsyncLockingSessions: of their
    methods, of ``with_lock()`` and of SQLAlchemy's ``with_for_update()``.

    Example::

        with recorded_locks() as locks:
            with Session() as session, session.locked(Order, 42):
                pass
        assert [record.lock for record in locks] == [LockOptions.ForUpdate]
    """
    recorder = _Recorder()
    with listening(*((LockingSession, name, getattr(recorder, name)) for name in _EVENTS)):
        yield recorder.records


@contextmanager
def assert_locked(
    entity: type[Any] | None, ident: Any, lock: LockOptions = LockOptions.ForUpdate
) -> Iterator[None]:
    """Check at the end of the block that a session took at least this lock in it.

    Example::

        with assert_locked(Order, 42), session.locked(Order, 42) as order:
            order.total += 1

    :param entity: a mapped class; None for a name that ``lock_key()`` locks.
    :param ident: the primary key as for ``get_entity()``; or the name.
    :param lock: ForUpdate includes ForUpdate with NoKey, which includes SharedRead, which includes
        SnapshotRead.  NoWait and SkipLocked make no difference.
    :raises AssertionError: no session took it; the message lists the locks that were taken. An error
        of the block itself propagates.
    :raises TypeError: not a mapped class, not a LockOptions.
    :raises ValueError: a key of the wrong shape; a lock that locks nothing.
    """
    check_block_lock(lock, "assert_locked")
    wanted = _document(entity, ident)
    with recorded_locks() as locks:
        yield
    if not any(_is_enough(taken, wanted, lock) for taken in locks):
        raise AssertionError(_what_was_taken(locks, wanted, lock))


class _Recorder:
    def __init__(self) -> None:
        self.records: list[LockRecord] = []
        self._held: WeakKeyDictionary[Session, dict[DocumentKey | LockedName, list[LockRecord]]] = (
            WeakKeyDictionary()
        )

    def lock_acquired(
        self, session: Session, document: DocumentKey | LockedName, lock: LockOptions, waited: float
    ) -> None:
        record = LockRecord(document[0], public_key(document[1]), lock, _GRANTED, waited)
        self.records.append(record)
        self._held.setdefault(session, {}).setdefault(document, []).append(record)

    def lock_failed(self, _session: Session, error: LockFailed, waited: float | None) -> None:
        self.records.append(
            LockRecord(error.entity, error.ident, error.lock, outcome_of(error), waited)
        )

    def locks_released(
        self, session: Session, released: Sequence[ReleasedLock], outcome: str
    ) -> None:
        now, held = time.monotonic(), self._held.get(session, {})
        for lock in released:
            for record in held.pop(lock.document, ()):
                record.held, record.ended = now - record._granted_at, outcome  # noqa: SLF001


def _document(entity: type[Any] | None, ident: Any) -> tuple[type[Any] | None, Any]:
    if entity is None:
        return None, ident
    mapper = mapper_of(entity)
    root, identity = document_key(mapper, identity_of(mapper, ident))
    return root, public_key(identity)


def _is_enough(record: LockRecord, wanted: tuple[type[Any] | None, Any], lock: LockOptions) -> bool:
    if record.outcome != _GRANTED or record.lock is None:
        return False
    same = (record.entity, record.ident) == wanted
    return same and strength_of(record.lock) >= strength_of(lock)


def _what_was_taken(
    locks: Sequence[LockRecord], wanted: tuple[type[Any] | None, Any], lock: LockOptions
) -> str:
    verb = "locked" if is_row_lock(lock) else "read"
    text = f"nobody has {verb} {document_label(*wanted)} {lock_label(lock)}"
    if not locks:
        return f"{text}; no lock was taken"
    lines = "".join(f"\n  {taken}" for taken in locks)
    return f"{text}; these locks were taken:{lines}"
