"""Lock documents, a header row and its details, with SQLAlchemy on five databases."""

from typing import TYPE_CHECKING, Any

from .claims import Claim, ClaimReport, Claims, FailedClaim, claim_each
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
from .session import LockingSession
from .statements import with_lock

if TYPE_CHECKING:
    from .async_claims import AsyncClaim, AsyncClaims, async_claim_each
    from .asyncio import AsyncLockingSession

__all__ = [
    "AsyncClaim",
    "AsyncClaims",
    "AsyncLockingSession",
    "Claim",
    "ClaimReport",
    "Claims",
    "DeadlockDetected",
    "DocLockError",
    "FailedClaim",
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
    "async_claim_each",
    "claim_each",
    "document",
    "with_lock",
]


def __getattr__(name: str) -> Any:
    # SQLAlchemy 2.1 does not bring greenlet, without which sqlalchemy.ext.asyncio does not
    # import; who does not use asyncio need not have it.
    if name == "AsyncLockingSession":
        from .asyncio import AsyncLockingSession  # noqa: PLC0415

        return AsyncLockingSession
    if name in ("AsyncClaim", "AsyncClaims", "async_claim_each"):
        from . import async_claims  # noqa: PLC0415

        return getattr(async_claims, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
