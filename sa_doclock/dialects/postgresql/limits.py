"""The limits of PostgreSQL, as the driver can send them: in round trips of their own, or with the lock."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.engine import Dialect

from ...options import LockOptions
from ..base import LockWaits, ServerHoldLimit
from .hold_limit import after_lock, before_lock
from .lock_limit import limited_locks, lock_limit


class PostgreSQLWaits(LockWaits):
    """The waits of PostgreSQL, limited by settings around the lock."""

    def limited(
        self,
        connection: Connection,
        lock: LockOptions,
        seconds: float | None,
        *,
        few_rows: bool = False,
    ) -> AbstractContextManager[None]:
        if seconds is None:
            return nullcontext()
        if not has_pipeline(connection.dialect):
            return limited_locks(connection, lock_limit(seconds, few_rows=few_rows))
        from .pipelined_lock import PipelinedLock  # noqa: PLC0415  # imports psycopg

        return PipelinedLock(connection, seconds, few_rows=few_rows)

    def longest(self, connection: Connection) -> float | None:
        # in milliseconds, 0 for ever
        limit = connection.exec_driver_sql(
            "SELECT setting FROM pg_settings WHERE name = 'lock_timeout'"
        ).scalar_one()
        return int(limit) / 1000 or None


class PostgreSQLHoldLimit(ServerHoldLimit):
    """The limits of PostgreSQL, with psycopg in one round trip with the lock."""

    def limit(self, connection: Connection, seconds: float) -> None:
        connection.exec_driver_sql(before_lock(seconds))

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
        if not has_pipeline(connection.dialect):
            return super().limit_with_wait(
                waits, connection, lock, seconds, hold_limit, few_rows=few_rows
            )
        from .pipelined_lock import PipelinedLock  # noqa: PLC0415  # imports psycopg

        after = after_lock(connection, hold_limit)
        return PipelinedLock(connection, seconds, few_rows=few_rows, after=after)

    def keep_idle_clock(self, connection: Connection) -> None:
        if has_pipeline(connection.dialect):
            from .many_rows import keep_idle_clock  # noqa: PLC0415  # imports psycopg

            keep_idle_clock(connection)


def has_pipeline(dialect: Dialect) -> bool:
    """Return whether the driver can send several statements in one round trip: with libpq 14 or later.

    https://www.psycopg.org/psycopg3/docs/advanced/pipeline.html
    """
    if dialect.driver != "psycopg":
        return False
    dbapi: Any = dialect.loaded_dbapi
    return bool(dbapi.Pipeline.is_supported())
