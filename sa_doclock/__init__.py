"""Lock documents, a header row and its details, with SQLAlchemy on five databases."""

from importlib.util import find_spec
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

    __version__: str

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

# SQLAlchemy 2.1 does not install greenlet, and without it sqlalchemy.ext.asyncio cannot be
# imported.  A program without asyncio needs neither.
_ASYNC = {name for name in __all__ if name.startswith(("Async", "async_"))}
if find_spec("greenlet") is None:  # then "from sa_doclock import *" leaves these out
    __all__[:] = [name for name in __all__ if name not in _ASYNC]


def __getattr__(name: str) -> Any:
    if name in _ASYNC:
        from . import asyncio  # noqa: PLC0415

        return getattr(asyncio, name)
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

        try:
            return version("sa-doclock")
        except PackageNotFoundError:  # the source alone, on sys.path
            return "unknown"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
