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
from .named import doclock_key
from .options import LockOptions
from .session import LockingSession
from .statements import with_lock

if TYPE_CHECKING:
    from .asyncio import AsyncLockingSession

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
    "UnlockedWriteWarning",
    "UnsavedChanges",
    "WrongIsolation",
    "doclock_key",
    "document",
    "with_lock",
]


def __getattr__(name: str) -> Any:
    # SQLAlchemy 2.1 does not bring greenlet, without which sqlalchemy.ext.asyncio does not
    # import; who does not use asyncio need not have it.
    if name == "AsyncLockingSession":
        from .asyncio import AsyncLockingSession  # noqa: PLC0415

        return AsyncLockingSession
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
