"""Sessions, transactions and claims for asyncio."""

from .claims import AsyncClaim, AsyncClaims, async_claim_each
from .leases import AsyncLease, AsyncLeases, async_lease_each
from .retry import async_run_transaction
from .scoped import AsyncLockingScopedSession
from .session import AsyncLockingSession, async_lock_waits
