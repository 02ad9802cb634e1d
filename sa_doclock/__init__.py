"""Lock documents, a header row and its details, with SQLAlchemy on five databases."""

from typing import TYPE_CHECKING, Any

from .declarations import document
from .errors import (
    DeadlockDetected,
    DocLockError,
    LockFailed,
    LockMisuse,
    LockNotAvailable,
    LockNotSupported,
    LockOrderViolation,
    LockUpgradeRefused,
    SnapshotConflict,
    UnlockedWrite,
    UnlockedWriteWarning,
    UnsavedChanges,
    WrongIsolation,
)
from .options import LockOptions
from .parties import LockParty, LockWait
from .session import LockingSession
from .statements import with_lock
from .waits import lock_waits

if TYPE_CHECKING:
    from .asyncio import AsyncLockingSession, async_lock_waits

__all__ = [
    "AsyncLockingSession",
    "DeadlockDetected",
    "DocLockError",
    "LockFailed",
    "LockMisuse",
    "LockNotAvailable",
    "LockNotSupported",
    "LockOptions",
    "LockOrderViolation",
    "LockParty",
    "LockUpgradeRefused",
    "LockWait",
    "LockingSession",
    "SnapshotConflict",
    "UnlockedWrite",
    "UnlockedWriteWarning",
    "UnsavedChanges",
    "WrongIsolation",
    "async_lock_waits",
    "document",
    "lock_waits",
    "with_lock",
]


def __getattr__(name: str) -> Any:
    # SQLAlchemy 2.1 does not bring greenlet, without which sqlalchemy.ext.asyncio does not
    # import; who does not use asyncio need not have it.
    if name in ("AsyncLockingSession", "async_lock_waits"):
        from . import asyncio  # noqa: PLC0415

        return getattr(asyncio, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
