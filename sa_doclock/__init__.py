"""Lock documents, a header row and its details, with SQLAlchemy on five databases."""

from .asyncio import AsyncLockingSession
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
    UnsavedChanges,
    WrongIsolation,
)
from .options import LockOptions
from .session import LockingSession
from .statements import with_lock

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
    "LockUpgradeRefused",
    "LockingSession",
    "SnapshotConflict",
    "UnlockedWrite",
    "UnsavedChanges",
    "WrongIsolation",
    "with_lock",
]
