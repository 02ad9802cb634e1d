"""The errors of PostgreSQL: their SQLSTATEs, and how a driver reports them."""

from __future__ import annotations

from typing import Any

from ...errors import DeadlockDetected, LockNotAvailable, LockNotSupported, SnapshotConflict
from ..base import Ends, ErrorCode, ErrorCodes, EveryError, MetError, NativeCode

# invalid_sql_statement_name and duplicate_prepared_statement: a pooler executed the statement on
# another server connection than the one where it was prepared.
_PREPARED_ELSEWHERE = (
    "a connection pooler executed a prepared statement on another server connection than the one that "
    'prepared it. Switch prepared statements off. psycopg: connect_args={"prepare_threshold": None}; asyncpg: '
    'connect_args={"statement_cache_size": 0, "prepared_statement_cache_size": 0, '
    '"prepared_statement_name_func": lambda: f"__asyncpg_{uuid4()}__"}'
)

_ELSEWHERE = ErrorCode(
    in_lock=LockNotSupported, why=_PREPARED_ELSEWHERE, advice=_PREPARED_ELSEWHERE
)

CACHED_PLAN = "0A000_RevalidateCachedQuery"
"""0A000 of this routine of the server: DDL has changed the columns that a prepared statement
returns.

Only the routine distinguishes it, in every language of the server; asyncpg decides by it too.
"""


class PostgreSQLErrors(ErrorCodes):
    # https://www.postgresql.org/docs/current/errcodes-appendix.html
    codes = {
        "55P03": ErrorCode(LockNotAvailable),  # lock_not_available: NOWAIT and lock_timeout alike
        "40P01": ErrorCode(DeadlockDetected),  # deadlock_detected
        # serialization_failure.  A standby ends the connection of an idle snapshot that blocks
        # recovery: https://www.postgresql.org/docs/current/hot-standby.html#HOT-STANDBY-CONFLICT
        "40001": ErrorCode(SnapshotConflict),
        CACHED_PLAN: ErrorCode(
            SnapshotConflict,
            "DDL changed the columns of a prepared statement. Run the whole transaction again",
        ),
        "25P03": ErrorCode(ends=Ends.CONNECTION_BEFORE),  # idle_in_transaction_session_timeout
        "25P04": ErrorCode(ends=Ends.CONNECTION_BEFORE),  # transaction_timeout
        # read_only_sql_transaction: READ ONLY, or a hot standby, which refuses every FOR ...
        "25006": ErrorCode(
            in_lock=LockNotSupported,
            why="a read-only transaction or a standby server cannot lock rows. "
            "Lock on the primary, or read with SnapshotRead",
        ),
        # query_canceled: statement_timeout, or pg_cancel_backend()
        "57014": ErrorCode(
            in_lock=LockNotAvailable, why="statement_timeout or a cancel request ended the wait"
        ),
        # feature_not_supported: FOR UPDATE with DISTINCT, GROUP BY, a window, an outer join
        "0A000": ErrorCode(
            in_lock=LockNotSupported, why="PostgreSQL cannot lock the rows of such a statement"
        ),
        "26000": _ELSEWHERE,
        "42P05": _ELSEWHERE,
    }
    every_error = EveryError.ABORTS

    def meaning(self, met: MetError) -> ErrorCode:
        # "while locking tuple (0,1) in relation .." is in the context, in the server's language; a
        # statement that was slow for other reasons has none.  Neither has one that queued behind
        # another waiter, so do not check if the statement cannot be slow.
        if met.code == "57014" and not met.by_key and not _context_of(met.orig):
            return ErrorCode()
        return super().meaning(met)

    def native_code(self, orig: BaseException) -> NativeCode | None:
        # psycopg and asyncpg; psycopg2; pg8000 gives a dict of the protocol's fields
        code: Any = getattr(orig, "sqlstate", None) or getattr(orig, "pgcode", None)
        if code is None and orig.args and isinstance(orig.args[0], dict):
            code = orig.args[0].get("C")
        if code is None:  # SQLAlchemy's InvalidCachedStatementError hides asyncpg's own
            code = getattr(orig.__cause__, "sqlstate", None)
        if code == "0A000" and _routine_of(orig) == "RevalidateCachedQuery":
            return CACHED_PLAN
        return code if isinstance(code, str) else None


def _routine_of(orig: BaseException) -> Any:
    diagnostics = getattr(orig, "diag", None)  # psycopg, and psycopg2, which lacks the routine
    if diagnostics is not None:
        return getattr(diagnostics, "source_function", None)
    if orig.args and isinstance(orig.args[0], dict):  # pg8000
        return orig.args[0].get("R")
    return getattr(orig.__cause__, "server_source_function", None)  # asyncpg


def _context_of(orig: BaseException) -> Any:
    diagnostics = getattr(orig, "diag", None)  # psycopg and psycopg2
    if diagnostics is not None:
        return diagnostics.context
    if orig.args and isinstance(orig.args[0], dict):  # pg8000: the protocol's fields
        return orig.args[0].get("W")
    return getattr(orig.__cause__, "context", None)  # asyncpg's own, below SQLAlchemy's
