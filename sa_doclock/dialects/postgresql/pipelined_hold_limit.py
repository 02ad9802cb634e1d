"""The limits of a transaction by psycopg 3: sent with the lock, and effective after many rows too."""

from __future__ import annotations

from contextlib import AbstractContextManager

from sqlalchemy import Connection

from ...options import LockOptions
from ..base import LockWaits
from .deferred_writes import keep_idle_clock
from .limits import PostgreSQLHoldLimit, after_lock
from .pipelined_lock import PipelinedLock


class PipelinedHoldLimit(PostgreSQLHoldLimit):
    """The limits of a transaction, set in one round trip with the lock."""

    def limit_with_wait(
        self,
        waits: LockWaits,
        connection: Connection,
        lock: LockOptions,
        seconds: float | None,
        hold_limit: float,
        *,
        few_rows: bool,
    ) -> AbstractContextManager[None]:
        keep_idle_clock(connection)
        after = after_lock(connection, hold_limit)
        return PipelinedLock(connection, seconds, few_rows=few_rows, after=after)

    def limit(self, connection: Connection, seconds: float) -> None:
        keep_idle_clock(connection)
        super().limit(connection, seconds)
