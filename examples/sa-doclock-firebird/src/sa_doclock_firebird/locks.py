"""Firebird 3.0 by sqlalchemy-firebird and firebird-driver.

"Language Reference" is https://firebirdsql.org/file/documentation/html/en/refdocs/fblangref30/ ;
"measured" means: seen on Firebird 3.0.11.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from firebird.driver import TPB, Isolation, TraAccessMode
from sqlalchemy import Connection, Table

from sa_doclock import (
    DeadlockDetected,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    SnapshotConflict,
    WrongIsolation,
)
from sa_doclock.dialects.base import (
    READ_COMMITTED,
    REPEATABLE_READ,
    ErrorCode,
    ErrorCodes,
    IsolationLevels,
    LockStatements,
    LockStrategy,
    LockText,
    MaxParameters,
    MetError,
    NativeCode,
    Reach,
    TransactionLifecycle,
    TransactionStatus,
    asked_here,
    base_of,
    levels_for,
)

from .monitoring import FirebirdMonitoring, remember_id

FOR_UPDATE, SHARED = LockOptions.ForUpdate, LockOptions.SharedRead
SNAPSHOT_READ = LockOptions.SnapshotRead

DEADLOCK = 335544336  # isc_deadlock
LOCK_CONFLICT = 335544345  # isc_lock_conflict
UPDATE_CONFLICT = 335544451  # isc_update_conflict
LOCK_TIMEOUT = 335544510  # isc_lock_timeout
READ_ONLY = 335544361  # isc_read_only_trans
# dsql_wlock_simple, _aggregates, _conflict; forupdate_virtualtbl, _systbl, _temptbl
NOT_LOCKABLE = (336397326, 336397328, 336397329, 335545073, 335545074, 335545075)
_refused = partial(ErrorCode, None, in_lock=LockNotSupported)

FOREVER = -1
_LEVELS = {Isolation.SNAPSHOT: REPEATABLE_READ, Isolation.SERIALIZABLE: "SERIALIZABLE"}
_ONE_LIMIT = (
    "Firebird limits the waits of a transaction, not those of one lock, and this transaction is "
    "open already with {}; give the lock_timeout to its first lock, or lock in a session of its own"
)


class FirebirdErrors(ErrorCodes):
    """The errors of Firebird, by their GDS codes."""

    # The most specific codes come first.
    codes = {  # noqa: RUF012
        LOCK_TIMEOUT: ErrorCode(LockNotAvailable),  # on a table: its LOCK TIMEOUT has expired
        LOCK_CONFLICT: ErrorCode(LockNotAvailable),  # on a table: the transaction is NO WAIT
        UPDATE_CONFLICT: ErrorCode(SnapshotConflict),  # or a failed lock: see meaning()
        DEADLOCK: ErrorCode(SnapshotConflict),  # likewise
        READ_ONLY: _refused("the transaction or the database is read-only"),
        # "WITH LOCK can only be used with a top-level, single-table SELECT statement"; not "with a
        # view", "with an external table" or with an aggregate.
        **dict.fromkeys(NOT_LOCKABLE, _refused("WITH LOCK needs one stored table")),
    }

    def native_code(self, orig: BaseException) -> NativeCode | None:
        """Return the most specific of the GDS codes: the first is often isc_deadlock."""
        codes: tuple[int, ...] = getattr(orig, "gds_codes", ())
        return next((code for code in self.codes if code in codes), codes[0] if codes else None)

    def meaning(self, met: MetError) -> ErrorCode:
        """Return the meaning of an update conflict; Firebird reports all of them alike.

        "No special gdscodes are returned from conflicts involving pessimistic locks."  NO WAIT, an expired
        LOCK TIMEOUT, a deadlock and another transaction's newer version are all 335544336 with 335544451
        (measured).  WITH LOCK at READ COMMITTED never gets a newer version, and a wait with a limit takes
        no part in the search for deadlocks (measured).  So the transaction's limit decides.
        """
        if not met.locking or met.code not in (UPDATE_CONFLICT, DEADLOCK):
            return super().meaning(met)
        forever = _limit_of(met.connection) == FOREVER
        return ErrorCode(DeadlockDetected if forever else LockNotAvailable)


class FirebirdIsolation(IsolationLevels):
    """READ COMMITTED for a lock, and a snapshot for readers."""

    # "How TPB settings affect explicit locking", isc_tpb_read_committed + isc_tpb_wait: the
    # transaction waits and "attempts to get the lock on the record again"; it then returns "the record
    # version that is the most currently committed".  In a SNAPSHOT the same wait ends with an update
    # conflict.
    # Readers get a SNAPSHOT, SQLAlchemy's REPEATABLE READ.
    levels = {  # noqa: RUF012  # IsolationLevels declares it ClassVar
        FOR_UPDATE: (READ_COMMITTED,),
        SHARED: (REPEATABLE_READ, READ_COMMITTED),
        SNAPSHOT_READ: (REPEATABLE_READ,),
    }
    # sqlalchemy-firebird 2.2 has no set_isolation_level() that works with firebird-driver 2.  The level
    # is a parameter of each transaction, which begin() starts: see set_once().

    def set_once(self, connection: Connection, level: str) -> None:
        """Leave the level to begin(), which is called next."""


class FirebirdStatements(LockStatements):
    """Adds WITH LOCK to the SELECT."""

    # For with_for_update(), sqlalchemy-firebird writes FOR UPDATE, which locks nothing (measured).  For
    # nowait=True it writes FOR UPDATE WITH LOCK, which waits unless its transaction is NO WAIT.
    texts = {FOR_UPDATE: LockText(suffix="WITH LOCK")}  # noqa: RUF012
    max_parameters = MaxParameters(1_400)  # an IN list has at most 1500 members
    # Measured: a transaction that waits for a row does not find it if the row is deleted and inserted again.
    retries_missing_rows = True
    reach = Reach(0)  # "WITH LOCK" is not available "for joined sets"
    snapshot_level = REPEATABLE_READ  # there is no shared record lock


class FirebirdStatus(TransactionStatus):
    """The state of the driver's transaction."""

    def in_transaction(self, connection: Connection, cursor: Any = None) -> bool | None:
        """Return the state that the driver reports."""
        return bool(_driver(connection).is_active())


class FirebirdLifecycle(TransactionLifecycle):
    """The start of a transaction."""

    def begun(self, connection: Connection, *, lent: bool) -> None:
        """Remember the connection's id: it cannot be queried while a statement waits."""
        remember_id(connection)


class FirebirdLocks(LockStrategy):
    """The locks of Firebird: WITH LOCK at READ COMMITTED, and snapshots for readers."""

    name = "firebird.firebird"
    errors = FirebirdErrors()
    isolation = FirebirdIsolation()
    statements = FirebirdStatements()
    status = FirebirdStatus()
    lifecycle = FirebirdLifecycle()
    monitoring = FirebirdMonitoring()
    refused = {LockOptions.SkipLocked: "Firebird 3 and 4 have no SKIP LOCKED"}  # noqa: RUF012

    def note_server(self, connection: Connection) -> None:
        """Tell SQLAlchemy the level of the driver's transactions; its dialect does not know it."""
        default = TPB()
        default.parse_buffer(_driver(connection).main_transaction.default_tpb)
        level = _LEVELS.get(default.isolation, READ_COMMITTED)
        connection.dialect.default_isolation_level = level  # type: ignore[assignment]

    def asking(self, connection: Connection) -> AbstractContextManager[Connection]:
        """Query on the connection itself: the driver answers, and sends nothing."""
        return asked_here(connection)

    def begin(self, connection: Connection, lock: LockOptions, seconds: float | None) -> None:
        """Start the transaction with the level and the time limit of its first lock."""
        driver = _driver(connection)
        if driver.is_active():  # a listener for after_begin sent a statement
            found = driver.main_transaction.info.isolation
            if _LEVELS.get(found, READ_COMMITTED) not in levels_for(self.isolation, lock):
                raise WrongIsolation("a listener has opened the transaction at another level")
            _refuse_other_limit(connection, lock, seconds)
            return
        isolation, access = Isolation.SNAPSHOT, TraAccessMode.WRITE
        if base_of(lock) is FOR_UPDATE:
            # Not NO RECORD_VERSION: there, a reader of the details waits for other writers.
            isolation = Isolation.READ_COMMITTED_RECORD_VERSION
        elif base_of(lock) is SNAPSHOT_READ:
            access = TraAccessMode.READ
        limit = _limit(lock, seconds)
        parameters = TPB(access_mode=access, isolation=isolation, lock_timeout=limit)
        driver.begin(parameters.get_buffer())

    def join(
        self,
        connection: Connection,
        lock: LockOptions,
        seconds: float | None,
        opened_for: LockOptions | None,
        header: Table | None,
    ) -> None:
        """Take the lock in the open transaction, if its wait limit fits the lock."""
        _refuse_other_limit(connection, lock, seconds)


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


def _limit(lock: LockOptions, seconds: float | None) -> int:
    if LockOptions.NoWait in lock:
        return 0
    return FOREVER if seconds is None else math.ceil(seconds)


def _limit_of(connection: Connection) -> int:
    return int(_driver(connection).main_transaction.info.lock_timeout)


def _refuse_other_limit(connection: Connection, lock: LockOptions, seconds: float | None) -> None:
    """Raise LockNotSupported if the lock needs a wait limit other than its transaction's."""
    wanted = _limit(lock, seconds)
    if wanted == FOREVER:
        return  # the transaction's own limit applies
    limit = _limit_of(connection)
    if wanted != limit:
        words = "waits without a limit" if limit == FOREVER else f"a limit of {limit} s"
        raise LockNotSupported(_ONE_LIMIT.format(words))
