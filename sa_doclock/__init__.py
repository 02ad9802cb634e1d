"""Lock documents, a header row and its details, with SQLAlchemy on five databases."""

from typing import TYPE_CHECKING, Any

from .claims import Claim, ClaimReport, Claims, FailedClaim, claim_each
from .documents import document
from .errors import (
    ClusterLockWarning,
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
from .events import ReleasedLock
from .gate import DocumentGate
from .lock_info import LockConnection, LockWait
from .locking import doclock_key
from .monitoring import lock_waits
from .options import LockOptions
from .pool import skip_redundant_rollback
from .retry import run_transaction
from .session import LockingSession
from .statements import with_lock
from .transactional import transactional

if TYPE_CHECKING:
    from .asyncio import (
        AsyncClaim,
        AsyncClaims,
        AsyncLockingSession,
        async_claim_each,
        async_lock_waits,
        async_run_transaction,
    )

__all__ = [
    "AsyncClaim",
    "AsyncClaims",
    "AsyncLockingSession",
    "Claim",
    "ClaimReport",
    "Claims",
    "ClusterLockWarning",
    "DeadlockDetected",
    "DocLockError",
    "DocumentGate",
    "FailedClaim",
    "LockConnection",
    "LockFailed",
    "LockMisuse",
    "LockNotAvailable",
    "LockNotSupported",
    "LockOptions",
    "LockOrderViolation",
    "LockUpgradeRefused",
    "LockWait",
    "LockingSession",
    "ReleasedLock",
    "SnapshotConflict",
    "UnlockedWrite",
    "UnlockedWriteWarning",
    "UnsavedChanges",
    "WrongIsolation",
    "async_claim_each",
    "async_lock_waits",
    "async_run_transaction",
    "claim_each",
    "doclock_key",
    "document",
    "lock_waits",
    "run_transaction",
    "skip_redundant_rollback",
    "transactional",
    "with_lock",
]


def __getattr__(name: str) -> Any:
    # SQLAlchemy 2.1 does not bring greenlet, without which sqlalchemy.ext.asyncio does not
    # import; who does not use asyncio need not have it.
    if name in ("AsyncLockingSession", "async_lock_waits"):
        from .asyncio import session as asyncio  # noqa: PLC0415

        return getattr(asyncio, name)
    if name == "async_run_transaction":
        from .asyncio import async_run_transaction  # noqa: PLC0415

        return async_run_transaction
    if name in ("AsyncClaim", "AsyncClaims", "async_claim_each"):
        from .asyncio import claims as async_claims  # noqa: PLC0415

        return getattr(async_claims, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
