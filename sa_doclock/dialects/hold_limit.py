"""The server's limit for an idle transaction that holds locks; a dialect may omit it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager

from sqlalchemy import Connection

from ..options import LockOptions
from .waits import LockWaits


class ServerHoldLimit(ABC):
    """The limit by which the server itself ends an idle transaction."""

    @abstractmethod
    def limit(self, connection: Connection, seconds: float) -> None:
        """Let the server end this transaction if it is idle for longer than that.

        The server must count the idle time after every statement, even if a driver ends one in a
        way that stops the server's clock.  Sent before the lock.  Register ``on_return()`` for a
        setting that outlives the transaction; a shorter limit of the server's own stays.
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
        """Send ``limit()`` and ``waits.limited()`` in one round trip if possible."""
        self.limit(connection, hold_limit)
        return waits.limited(connection, lock, seconds, few_rows=few_rows)
