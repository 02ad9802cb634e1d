"""Lock documents, a header row and its details, with SQLAlchemy on five databases.

PYTEST_DONT_REWRITE: ``sa-doclock audit -- -m pytest`` imports this package before pytest does.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .checkout_info import Checkout
from .core.documents import document
from .core.statements import with_lock
from .errors import (
    CheckedOut,
    CheckoutLost,
    ClusterLockWarning,
    CommitUnknown,
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
from .features.named_locks import doclock_key
from .guard import atomic_update
from .options import LockOptions
from .pool import skip_redundant_rollback
from .session import LockingSession

if TYPE_CHECKING:
    from .asyncio import AsyncClaim as AsyncClaim
    from .asyncio import AsyncClaims as AsyncClaims
    from .asyncio import AsyncLease as AsyncLease
    from .asyncio import AsyncLeases as AsyncLeases
    from .asyncio import (
        AsyncLockingScopedSession,
        AsyncLockingSession,
        async_claim_each,
        async_lease_each,
        async_lock_waits,
        async_run_transaction,
    )
    from .claims import Claim as Claim
    from .claims import ClaimReport as ClaimReport
    from .claims import Claims as Claims
    from .claims import FailedClaim as FailedClaim
    from .claims import Lease as Lease
    from .claims import Leases as Leases
    from .claims import claim_each, lease_each
    from .decorator import transactional
    from .events import ReleasedLock as ReleasedLock
    from .features.checkouts import checkout_table
    from .features.gate import DocumentGate
    from .retry import run_transaction
    from .scoped_session import LockingScopedSession
    from .tools.doctor import Finding as Finding
    from .tools.doctor import check_database
    from .tools.explain import LockExplanation as LockExplanation
    from .tools.explain import explain_lock
    from .tools.monitoring import lock_waits
    from .wait_info import LockConnection as LockConnection
    from .wait_info import LockWait as LockWait

    __version__: str

__all__ = [
    "AsyncLockingScopedSession",
    "AsyncLockingSession",
    "CheckedOut",
    "Checkout",
    "CheckoutLost",
    "ClusterLockWarning",
    "CommitUnknown",
    "DeadlockDetected",
    "DocLockError",
    "DocumentGate",
    "LockFailed",
    "LockLost",
    "LockMisuse",
    "LockNotAvailable",
    "LockNotSupported",
    "LockOptions",
    "LockOrderViolation",
    "LockUpgradeRefused",
    "LockingScopedSession",
    "LockingSession",
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
_HAS_GREENLET = find_spec("greenlet") is not None
if not _HAS_GREENLET:  # then "from sa_doclock import *" leaves these out
    __all__[:] = [name for name in __all__ if name not in _ASYNC]


# A session needs none of these: the module is imported with the first use of the name.
_AT_FIRST_USE = {
    "DocumentGate": "features.gate",
    "LockingScopedSession": "scoped_session",
    "check_database": "tools.doctor",
    "checkout_table": "features.checkouts",
    "claim_each": "claims",
    "explain_lock": "tools.explain",
    "lease_each": "claims",
    "lock_waits": "tools.monitoring",
    "run_transaction": "retry",
    "transactional": "decorator",
}

# The types that functions return. Programs name them in annotations, and need not construct them;
# they may be imported from here as from their own modules.
_RETURNED = {
    "AsyncClaim": "asyncio",
    "AsyncClaims": "asyncio",
    "AsyncLease": "asyncio",
    "AsyncLeases": "asyncio",
    "Claim": "claims",
    "ClaimReport": "claims",
    "Claims": "claims",
    "FailedClaim": "claims",
    "Finding": "tools.doctor",
    "Lease": "claims",
    "Leases": "claims",
    "LockConnection": "wait_info",
    "LockExplanation": "tools.explain",
    "LockWait": "wait_info",
    "ReleasedLock": "events",
}
_MODULES = {**_AT_FIRST_USE, **_RETURNED, **dict.fromkeys(_ASYNC, "asyncio")}


def __dir__() -> list[str]:
    late = (name for name in _MODULES if _HAS_GREENLET or _MODULES[name] != "asyncio")
    return sorted({*globals(), *late, "__version__"})


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        found = globals()[name] = getattr(import_module(f".{_MODULES[name]}", __name__), name)
        return found
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

        try:
            return version("sa-doclock")
        except PackageNotFoundError:  # the source alone, on sys.path
            return "unknown"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
