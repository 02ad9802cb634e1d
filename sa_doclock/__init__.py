"""Lock documents, a header row and its details, with SQLAlchemy on five databases.

PYTEST_DONT_REWRITE: ``sa-doclock audit -- -m pytest`` imports this package before pytest does.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .checkout_info import Checkout
from .claims import (
    Claim,
    ClaimReport,
    Claims,
    FailedClaim,
    Lease,
    Leases,
    claim_each,
    lease_each,
)
from .core.documents import document
from .core.pool import skip_redundant_rollback
from .core.statements import with_lock
from .errors import (
    CheckedOut,
    CheckoutLost,
    ClusterLockWarning,
    DeadlockDetected,
    DocLockError,
    LockFailed,
    LockLost,
    LockMisuse,
    LockNotAvailable,
    LockNotSupported,
    LockOrderViolation,
    LockUpgradeRefused,
    SnapshotConflict,
    StaleDocument,
    UnlockedWrite,
    UnlockedWriteWarning,
    UnsavedChanges,
    WrongIsolation,
)
from .events import ReleasedLock
from .features.checkouts import checkout_table
from .features.gate import DocumentGate
from .features.guard import atomic_update
from .features.named_locks import doclock_key
from .options import LockOptions
from .retry import run_transaction
from .session import LockingScopedSession, LockingSession
from .tools.monitoring import lock_waits
from .transactional import transactional
from .wait_info import LockConnection, LockWait

if TYPE_CHECKING:
    from .asyncio import (
        AsyncClaim,
        AsyncClaims,
        AsyncLease,
        AsyncLeases,
        AsyncLockingScopedSession,
        AsyncLockingSession,
        async_claim_each,
        async_lease_each,
        async_lock_waits,
        async_run_transaction,
    )
    from .tools.doctor import Finding, check_database
    from .tools.explain import LockExplanation, explain_lock

    __version__: str

__all__ = [
    "AsyncClaim",
    "AsyncClaims",
    "AsyncLease",
    "AsyncLeases",
    "AsyncLockingScopedSession",
    "AsyncLockingSession",
    "CheckedOut",
    "Checkout",
    "CheckoutLost",
    "Claim",
    "ClaimReport",
    "Claims",
    "ClusterLockWarning",
    "DeadlockDetected",
    "DocLockError",
    "DocumentGate",
    "FailedClaim",
    "Finding",
    "Lease",
    "Leases",
    "LockConnection",
    "LockExplanation",
    "LockFailed",
    "LockLost",
    "LockMisuse",
    "LockNotAvailable",
    "LockNotSupported",
    "LockOptions",
    "LockOrderViolation",
    "LockUpgradeRefused",
    "LockWait",
    "LockingScopedSession",
    "LockingSession",
    "ReleasedLock",
    "SnapshotConflict",
    "StaleDocument",
    "UnlockedWrite",
    "UnlockedWriteWarning",
    "UnsavedChanges",
    "WrongIsolation",
    "async_claim_each",
    "async_lease_each",
    "async_lock_waits",
    "async_run_transaction",
    "atomic_update",
    "check_database",
    "checkout_table",
    "claim_each",
    "doclock_key",
    "document",
    "explain_lock",
    "lease_each",
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


# What an operator asks for, and few programs: the package is imported with the first use of the name.
_AT_FIRST_USE = {
    "Finding": "tools.doctor",
    "LockExplanation": "tools.explain",
    "check_database": "tools.doctor",
    "explain_lock": "tools.explain",
}


def __getattr__(name: str) -> Any:
    if name in _AT_FIRST_USE:
        return getattr(import_module(f".{_AT_FIRST_USE[name]}", __name__), name)
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
