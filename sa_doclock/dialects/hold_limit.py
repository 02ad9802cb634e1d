"""The server's limit for a transaction that holds locks and is idle; a dialect may leave it out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager

from sqlalchemy import Connection

from ..options import LockOptions
from .waits import LockWaits


class ServerHoldLimit(ABC):
    """The limit by which the server itself ends a transaction that sits idle."""

    @abstractmethod
    def limit(self, connection: Connection, seconds: float) -> None:
        """Have the server end this transaction, if it sits idle for longer than that.

        The server must count the idle time after every statement, also where a driver ends one in a way
        that stops the server's clock.
        Sent before the lock.  What outlives the transaction is put back by ``on_return()``; a
        shorter limit of the server's own stays.
        """

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
        """Send ``limit()`` and ``waits.limited()`` in one round trip where that is possible."""
        self.limit(connection, hold_limit)
        return waits.limited(connection, lock, seconds, few_rows=few_rows)
