"""PostgreSQL 12 and later: psycopg, psycopg2, asyncpg, pg8000."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from sqlalchemy import Connection, Table, bindparam, func, literal, select

from ..errors import DeadlockDetected, LockNotAvailable, LockNotSupported, SnapshotConflict
from ..options import LockOptions, base_of, milliseconds
from ..parties import LockParty, Wait
from . import postgresql_holders
from .base import READ_COMMITTED, REPEATABLE_READ, LockStrategy, NativeCode

# set_config(.., true) is SET LOCAL, which takes no parameter: rolled back with the
# transaction or savepoint, but it lasts past the lock, so the old value is asked along.
_SET_TIMEOUT = select(
    func.current_setting("lock_timeout"),
    func.set_config("lock_timeout", bindparam("doclock_timeout"), literal(True)),
)
_RESET_TIMEOUT = select(
    func.set_config("lock_timeout", bindparam("doclock_timeout"), literal(True))
)


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
    transaction_dead = frozenset(failures)
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
    rereads_missing = True
    names_holders = True

    def begin(self, connection: Connection, lock: LockOptions, seconds: float | None) -> None:
        if base_of(lock) is LockOptions.SnapshotRead:
            # Not the postgresql_readonly option: that is reset to READ WRITE when the
            # connection returns, whatever its own default was.
            connection.exec_driver_sql("SET TRANSACTION READ ONLY")

    def waiting(
        self, connection: Connection, lock: LockOptions, seconds: float | None
    ) -> AbstractContextManager[None]:
        return nullcontext() if seconds is None else _lock_timeout(connection, seconds)

    def is_aborted(self, connection: Connection) -> bool | None:
        # psycopg and psycopg2; asyncpg and pg8000 do not tell
        info: Any = getattr(connection.connection.driver_connection, "info", None)
        status = getattr(info, "transaction_status", None)
        return None if status is None else int(status) == _IN_ERROR

    def native_code(self, orig: BaseException) -> NativeCode | None:
        # psycopg and asyncpg; psycopg2; pg8000 gives a dict of the protocol's fields
        code: Any = getattr(orig, "sqlstate", None) or getattr(orig, "pgcode", None)
        if code is None and orig.args and isinstance(orig.args[0], dict):
            code = orig.args[0].get("C")
        return code if isinstance(code, str) else None

    def connection_id(self, connection: Connection) -> int | None:
        driver: Any = connection.connection.driver_connection
        if hasattr(driver, "get_server_pid"):
            return int(driver.get_server_pid())  # asyncpg
        pid = getattr(getattr(driver, "info", None), "backend_pid", None)  # psycopg, psycopg2
        return pid if isinstance(pid, int) else None

    def holders(
        self,
        connection: Connection,
        header: Table,
        keys: Sequence[tuple[Any, ...]],
        *,
        shared: bool,
    ) -> Mapping[int, bool]:
        return postgresql_holders.holders(connection, header, keys, shared=shared)

    def waits(self, connection: Connection) -> Iterable[Wait]:
        return postgresql_holders.waits(connection, self.server_version or (14,))

    def parties(self, connection: Connection, ids: Collection[int]) -> Mapping[int, LockParty]:
        return postgresql_holders.parties(connection, ids)


@contextmanager
def _lock_timeout(connection: Connection, seconds: float) -> Iterator[None]:
    old = connection.execute(
        _SET_TIMEOUT, {"doclock_timeout": f"{milliseconds(seconds)}ms"}
    ).scalar_one()
    # No finally: after an error the server takes nothing but a rollback, and the rollback
    # of the transaction or savepoint puts the old value back.
    yield
    connection.execute(_RESET_TIMEOUT, {"doclock_timeout": old})
