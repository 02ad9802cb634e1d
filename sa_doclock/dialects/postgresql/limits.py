"""The limits of PostgreSQL, as the driver can send them: in round trips of their own, or with the lock."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sqlalchemy import Connection

from .lock_limit import limited_locks, lock_limit


def limited_wait(
    connection: Connection, seconds: float | None, *, few_rows: bool
) -> AbstractContextManager[None]:
    """Limit the waits of the locks in this block; None: as the server does."""
    if seconds is None:
        return nullcontext()
    if not has_pipeline(connection):
        return limited_locks(connection, lock_limit(seconds, few_rows=few_rows))
    from .pipelined_lock import PipelinedLock  # noqa: PLC0415  # imports psycopg

    return PipelinedLock(connection, seconds, few_rows=few_rows)


def has_pipeline(connection: Connection) -> bool:
    """Return whether the driver can send several statements in one round trip."""
    if connection.dialect.driver != "psycopg":
        return False
    dbapi: Any = connection.dialect.loaded_dbapi
    return bool(dbapi.Pipeline.is_supported())
