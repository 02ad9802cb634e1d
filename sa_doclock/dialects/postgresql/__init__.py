"""PostgreSQL 12 and later: psycopg, psycopg2, asyncpg, pg8000."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from sqlalchemy import Connection, bindparam, func, literal, select, text
from sqlalchemy.exc import DBAPIError

from ...errors import (
    DeadlockDetected,
    DocLockError,
    LockFailed,
    LockNotAvailable,
    LockNotSupported,
    SnapshotConflict,
)
from ...options import LockOptions, base_of, milliseconds
from ..base import READ_COMMITTED, REPEATABLE_READ, LockStrategy, NativeCode, Pipeline
from .monitoring import PostgreSQLMonitoring

# set_config(.., true) is SET LOCAL, which takes no parameter: rolled back with the
# transaction or savepoint, but it lasts past the lock, so the old value is asked along.
_SET_TIMEOUT = select(
    func.current_setting("lock_timeout"),
    func.set_config("lock_timeout", bindparam("doclock_timeout"), literal(True)),
)
_RESET_TIMEOUT = select(
    func.set_config("lock_timeout", bindparam("doclock_timeout"), literal(True))
)

# A lock on 64 bits, which two keys may share: that is a needless wait, and no more.
# A standby grants them too, among its own sessions: there it is no row that comes back.
_KEY = "advisory_xact_lock{shared}(hashtextextended(:key, 0)) WHERE NOT pg_is_in_recovery()"
_TAKE_KEY = {
    LockOptions.ForUpdate: text("SELECT pg_" + _KEY.format(shared="")),
    LockOptions.SharedRead: text("SELECT pg_" + _KEY.format(shared="_shared")),
    LockOptions.ForUpdate | LockOptions.NoWait: text("SELECT pg_try_" + _KEY.format(shared="")),
    LockOptions.SharedRead | LockOptions.NoWait: text(
        "SELECT pg_try_" + _KEY.format(shared="_shared")
    ),
}

_IN_ERROR = 3  # PQTRANS_INERROR of libpq


class PostgreSQLLocks(LockStrategy):
    name = "postgresql"
    levels = {
        LockOptions.ForUpdate: (READ_COMMITTED,),
        LockOptions.SharedRead: (READ_COMMITTED,),
        LockOptions.SnapshotRead: (REPEATABLE_READ,),
    }
    # https://www.postgresql.org/docs/current/errcodes-appendix.html
    failures = {
        "55P03": LockNotAvailable,  # lock_not_available: NOWAIT and lock_timeout alike
        "40P01": DeadlockDetected,  # deadlock_detected
        "40001": SnapshotConflict,  # serialization_failure
    }
    requires_rollback = frozenset(failures)
    # A standby ends the connection of a snapshot that is idle when it is in the way of recovery:
    # https://www.postgresql.org/docs/current/hot-standby.html#HOT-STANDBY-CONFLICT
    ends_connection = frozenset({"40001"})
    aborts_on_error = True
    refusals = {
        # read_only_sql_transaction: READ ONLY, or a hot standby, which refuses every FOR ...
        "25006": (
            LockNotSupported,
            (
                "a read-only transaction or a standby server cannot lock rows; "
                "lock on the primary, or read with SnapshotRead"
            ),
        ),
        # query_canceled: statement_timeout, or pg_cancel_backend()
        "57014": (LockNotAvailable, "statement_timeout or a cancel request ended the wait"),
        # feature_not_supported: FOR UPDATE with DISTINCT, GROUP BY, a window, an outer join
        "0A000": (LockNotSupported, "PostgreSQL cannot lock the rows of such a statement"),
    }
    # READ COMMITTED re-checks the row version that it waited for.  One that was deleted and
    # inserted again meanwhile is another row, which only a new statement's snapshot shows.
    retries_missing_rows = True
    monitoring = PostgreSQLMonitoring()

    def begin(self, connection: Connection, lock: LockOptions, seconds: float | None) -> None:
        if base_of(lock) is LockOptions.SnapshotRead:
            # Not the postgresql_readonly option: that is reset to READ WRITE when the
            # connection returns, whatever its own default was.
            connection.exec_driver_sql("SET TRANSACTION READ ONLY")

    def waiting(
        self, connection: Connection, lock: LockOptions, seconds: float | None
    ) -> AbstractContextManager[None]:
        if seconds is None:
            return nullcontext()
        if not _has_pipeline(connection):
            return _lock_timeout(connection, seconds)
        from .pipelined_lock import PipelinedLock  # noqa: PLC0415  # imports psycopg

        return PipelinedLock(connection, seconds).installed()

    def pipeline(self, connection: Connection) -> Pipeline | None:
        if not _has_pipeline(connection):
            return None
        from .psycopg import PsycopgPipeline  # noqa: PLC0415  # imports psycopg

        return PsycopgPipeline(connection)

    def take_key(
        self, connection: Connection, key: str, lock: LockOptions, seconds: float | None
    ) -> type[LockFailed] | None:
        with self.waiting(connection, lock, seconds):
            found = connection.execute(_TAKE_KEY[lock], {"key": key}).first()
        if found is None:
            raise LockNotSupported(
                "a standby server knows nothing of the keys that are taken on its primary; "
                "take the key there"
            )
        return LockNotAvailable if found[0] is False else None

    def is_aborted(self, connection: Connection) -> bool | None:
        # psycopg and psycopg2; asyncpg and pg8000 do not tell
        info: Any = getattr(connection.connection.driver_connection, "info", None)
        status = getattr(info, "transaction_status", None)
        return None if status is None else int(status) == _IN_ERROR

    def refusal(
        self, code: NativeCode | None, orig: BaseException, *, by_key: bool
    ) -> tuple[type[DocLockError], str] | None:
        # "while locking tuple (0,1) in relation .." stands in the context, in the language of
        # the server; a statement that was slow by itself has none.  Nor has one that has queued
        # behind another that waits, so where the statement cannot be slow nothing is asked.
        if code == "57014" and not by_key and not _context_of(orig):
            return None
        return super().refusal(code, orig, by_key=by_key)

    def longest_wait(self, connection: Connection) -> float | None:
        # in milliseconds, 0 for ever
        limit = connection.exec_driver_sql(
            "SELECT setting FROM pg_settings WHERE name = 'lock_timeout'"
        ).scalar_one()
        return int(limit) / 1000 or None

    def native_code(self, orig: BaseException) -> NativeCode | None:
        # psycopg and asyncpg; psycopg2; pg8000 gives a dict of the protocol's fields
        code: Any = getattr(orig, "sqlstate", None) or getattr(orig, "pgcode", None)
        if code is None and orig.args and isinstance(orig.args[0], dict):
            code = orig.args[0].get("C")
        return code if isinstance(code, str) else None


def _context_of(orig: BaseException) -> Any:
    diagnostics = getattr(orig, "diag", None)  # psycopg and psycopg2
    if diagnostics is not None:
        return diagnostics.context
    if orig.args and isinstance(orig.args[0], dict):  # pg8000: the protocol's fields
        return orig.args[0].get("W")
    return getattr(orig.__cause__, "context", None)  # asyncpg's own, below SQLAlchemy's


@contextmanager
def _lock_timeout(connection: Connection, seconds: float) -> Iterator[None]:
    old = connection.execute(
        _SET_TIMEOUT, {"doclock_timeout": f"{milliseconds(seconds)}ms"}
    ).scalar_one()
    try:
        yield
    except DBAPIError:
        # The server takes nothing but a rollback now, and the rollback of the transaction or
        # savepoint puts the old value back.
        raise
    except Exception:
        # A listener's, of which the server knows nothing; or ours, in place of the server's own.
        with suppress(DBAPIError):
            connection.execute(_RESET_TIMEOUT, {"doclock_timeout": old})
        raise
    connection.execute(_RESET_TIMEOUT, {"doclock_timeout": old})


def _has_pipeline(connection: Connection) -> bool:
    """Return whether the driver can send several statements in one round trip."""
    if connection.dialect.driver != "psycopg":
        return False
    dbapi: Any = connection.dialect.loaded_dbapi
    return bool(dbapi.Pipeline.is_supported())
