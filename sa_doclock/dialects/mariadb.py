"""MariaDB 10.6 and later, whether the URL says mariadb or mysql."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from decimal import Decimal
from itertools import chain
from typing import Any

from sqlalchemy import Connection, Select, TextClause, bindparam, text
from sqlalchemy.engine import Dialect

from ..errors import LockNotAvailable, SnapshotConflict
from ..options import LockOptions, may_queue, milliseconds
from .base import REPEATABLE_READ, Ends, ErrorCode, Limit, MaxParameters, PlainReads, Reach
from .connection import rewritten_statements
from .innodb import (
    INNODB_CODES,
    InnoDBErrors,
    InnoDBHoldLimit,
    InnoDBIsolation,
    InnoDBLifecycle,
    InnoDBLocks,
    InnoDBMonitoring,
    InnoDBStatements,
    InnoDBWaits,
)
from .innodb_named_locks import InnoDBNamedLocks
from .named_locks import recent_keys
from .waits import SECONDS_AFTER_GRANT, SECONDS_WITHOUT_WAIT, text_with_numbers

# https://mariadb.com/kb/en/changes-and-improvements-in-mariadb-106/
HAS_SKIP_LOCKED = (10, 6)
# innodb_snapshot_isolation is on, error 1020: https://mariadb.com/kb/en/mariadb-11-6-2-release-notes/
_DETECTS_CONFLICTS = (11, 6, 2)

# INNODB_LOCKS lists only locks with a waiter, and the waiters' locks.  Our own wait has ended:
# without another waiter, we know only which connections hold any row or table locks.
_HOLDERS = text(
    """
    SET STATEMENT max_statement_time = 1 FOR
    SELECT t.trx_mysql_thread_id, t.trx_rows_locked > 0, t.trx_id IN (
    SELECT l.lock_trx_id FROM information_schema.innodb_locks AS l
    WHERE l.lock_table = CONCAT(CHAR(96 USING utf8mb4), COALESCE(:schema, DATABASE()),
    CHAR(96, 46, 96 USING utf8mb4), :name, CHAR(96 USING utf8mb4))
    AND l.lock_index = 'PRIMARY' AND l.lock_data IN :keys
    AND (l.lock_mode LIKE 'X%' OR NOT :shared)
    AND l.lock_id NOT IN (SELECT trx_requested_lock_id FROM information_schema.innodb_trx
    WHERE trx_requested_lock_id IS NOT NULL))
    FROM information_schema.innodb_trx AS t WHERE t.trx_lock_structs > 0"""
).bindparams(bindparam("keys", expanding=True))
# InnoDB's times follow the system's clock, NOW() the session's time zone.
_CONNECTIONS = text(
    """
    SET STATEMENT max_statement_time = 1 FOR
    SELECT p.id, p.user, NULL, p.command, TIMESTAMPDIFF(
    MICROSECOND, t.trx_started, CONVERT_TZ(NOW(6), @@time_zone, 'SYSTEM')) / 1e6,
    COALESCE(NULLIF(p.info, ''), t.trx_query), REGEXP_REPLACE(p.host, ':[0-9]+$', '')
    FROM information_schema.processlist AS p
    LEFT JOIN information_schema.innodb_trx AS t ON t.trx_mysql_thread_id = p.id
    WHERE p.id IN :ids"""
).bindparams(bindparam("ids", expanding=True))
# One row per waiter: a queue of n waiters has n * n / 2 rows in INNODB_LOCK_WAITS.  All readers
# have transaction number 0; the number of a lock contains its row.
_WAITS = text(
    """
    SET STATEMENT max_statement_time = 1, group_concat_max_len = 4294967295 FOR
    SELECT DISTINCT w.trx_mysql_thread_id, blockers, l.lock_table, CONCAT('`', DATABASE(), '`.'),
    CASE WHEN l.lock_index = 'PRIMARY' THEN l.lock_data END, TIMESTAMPDIFF(
    MICROSECOND, w.trx_wait_started, CONVERT_TZ(NOW(6), @@time_zone, 'SYSTEM')) / 1e6
    FROM (SELECT requested_lock_id, GROUP_CONCAT(DISTINCT blocking_trx_id) AS blockers
    FROM information_schema.innodb_lock_waits GROUP BY requested_lock_id) AS waiting
    JOIN information_schema.innodb_trx AS w ON w.trx_requested_lock_id = requested_lock_id
    LEFT JOIN information_schema.innodb_locks AS l ON l.lock_id = requested_lock_id"""
)
# From the same copy as the waits, which is renewed after 0.1 s without a read.
_HOLDERS_OF_LOCKS = text(
    """
    SET STATEMENT max_statement_time = 1 FOR
    SELECT trx_id, trx_mysql_thread_id FROM information_schema.innodb_trx
    WHERE trx_lock_structs > 0"""
)
# Without the plugin METADATA_LOCK_INFO, the server lists no named locks.  A waiting connection has
# that state, and the name in its statement, which the drivers send as text.
_NAMED_WAITS = text(
    """
    SET STATEMENT max_statement_time = 1 FOR
    SELECT id, IS_USED_LOCK(name), name, seconds FROM (
    SELECT id, time_ms / 1000 AS seconds, LEFT(SUBSTRING_INDEX(
    SUBSTRING_INDEX(info, 'GET_LOCK(''', -1), '''', 1), 64) AS name
    FROM information_schema.processlist
    WHERE state = 'User lock' AND info LIKE BINARY '%GET_LOCK(''%') AS waiting"""
)


class MariaDBMonitoring(InnoDBMonitoring):
    seconds_between_looks = 0.12  # CACHE_MIN_IDLE in its trx0i_s.cc is 0.1
    holders_query = _HOLDERS
    connections_query = _CONNECTIONS

    def waits(self, connection: Connection) -> Iterable[Sequence[Any]]:
        yield from _row_waits(connection)
        keys = recent_keys()
        for waiter, holder, name, seconds in connection.execute(_NAMED_WAITS):
            if holder is not None:
                yield waiter, holder, None, keys.get(name, name), seconds


def _row_waits(connection: Connection) -> Iterator[Sequence[Any]]:
    threads: dict[str, list[int]] = {}
    rows = connection.execute(_WAITS).all()
    for transaction, thread in connection.execute(_HOLDERS_OF_LOCKS) if rows else ():
        threads.setdefault(str(transaction), []).append(thread)
    for waiter, blockers, table, here, key, seconds in rows:
        name = None if table is None else table.removeprefix(here or "").replace("`", "")
        blocking = (threads.get(number, ()) for number in str(blockers).split(","))
        for blocker in chain.from_iterable(blocking):
            yield waiter, blocker, name, key, seconds


class ConflictIsolation(InnoDBIsolation):
    """The levels if innodb_snapshot_isolation is on."""

    plain_reads = {
        **InnoDBIsolation.plain_reads,
        REPEATABLE_READ: PlainReads.PAST_WRITERS | PlainReads.OLDER | PlainReads.CONFLICT,
    }


class MariaDBErrors(InnoDBErrors):
    # https://mariadb.com/kb/en/mariadb-error-codes/
    codes = {
        **INNODB_CODES,
        1205: ErrorCode(LockNotAvailable),  # ER_LOCK_WAIT_TIMEOUT; NOWAIT gives the same number
        # ER_CHECKREAD: innodb_snapshot_isolation, on since 11.6.2
        1020: ErrorCode(SnapshotConflict, ends=Ends.TRANSACTION),
        # ER_STATEMENT_TIMEOUT, of max_statement_time
        1969: ErrorCode(in_lock=LockNotAvailable, limit=Limit.STATEMENT),
        # ER_SPECIFIC_ACCESS_DENIED_ERROR
        1227: ErrorCode(monitoring="the account needs GRANT PROCESS ON *.*"),
        1927: ErrorCode(ends=Ends.CONNECTION),  # ER_CONNECTION_KILLED: by KILL, during a statement
    }


class MariaDBStatements(InnoDBStatements):
    # From 1000 values on, an IN list becomes a subquery, and the whole table is read and locked:
    # https://mariadb.com/kb/en/conversion-of-big-in-predicates-into-subqueries/
    max_parameters = MaxParameters(900)
    reach = Reach(0)  # there is no FOR UPDATE OF: MDEV-17514


class MariaDBWaits(InnoDBWaits):
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
        if seconds != math.ceil(seconds):
            return _limited_statements(connection, milliseconds(seconds) / 1000)
        if few_rows and may_queue(lock):  # WAIT applies to each row
            return _limited_statements(connection, seconds + SECONDS_AFTER_GRANT)
        return nullcontext()

    def timed(self, statement: Select[Any], lock: LockOptions, seconds: float) -> Select[Any]:
        if not may_queue(lock):
            return statement  # the server accepts one of the three
        # Whole seconds, rounded up: the server truncates a fraction to NOWAIT.  Also if limited()
        # sets a shorter limit: WAIT replaces innodb_lock_wait_timeout, which may be shorter still.
        return statement.suffix_with(
            text_with_numbers("WAIT :doclock_limit", doclock_limit=math.ceil(seconds))
        )


def _limited_statements(connection: Connection, seconds: float) -> AbstractContextManager[None]:
    """Limit each locking statement as a whole, not only each of its waits."""

    def limited(statement: str, _: object) -> str:
        # The last try of WaitLimit.again() shows whether the row is locked, and does not wait.
        last_try = " NOWAIT" in statement  # a suffix of the program may follow
        most = max(seconds, SECONDS_WITHOUT_WAIT) if last_try else seconds
        return f"SET STATEMENT max_statement_time={most:.3f} FOR {statement}"

    return rewritten_statements(connection, limited, "FOR UPDATE", "LOCK IN SHARE MODE")


def _wait_for_name(seconds: float) -> TextClause:
    limit = Decimal(milliseconds(seconds)).scaleb(-3)
    return text_with_numbers("SELECT GET_LOCK(:name, :limit)", limit=limit)


class MariaDBLifecycle(InnoDBLifecycle):
    # XA PREPARE releases the shared locks of a transaction that has written, by
    # lock_release_on_prepare() in storage/innobase/lock/lock0lock.cc.
    kept_by_prepare = frozenset({LockOptions.ForUpdate})


class MariaDBLocks(InnoDBLocks):
    name = "mariadb"
    monitoring = MariaDBMonitoring()
    errors = MariaDBErrors()
    statements = MariaDBStatements()
    waits = MariaDBWaits()
    named_locks = InnoDBNamedLocks(_wait_for_name, errors)
    lifecycle = MariaDBLifecycle()
    # https://mariadb.com/docs/server/server-management/variables-and-modes/server-system-variables;
    # 0: none
    hold_limit = InnoDBHoldLimit(
        "idle_transaction_timeout",
        (
            "IF(@@SESSION.idle_transaction_timeout BETWEEN 1 AND {limit}, "
            "@@SESSION.idle_transaction_timeout, {limit})"
        ),
    )

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        if (self.server_version or ()) >= _DETECTS_CONFLICTS:
            self.isolation = ConflictIsolation()
        version = self.server_version or HAS_SKIP_LOCKED
        if version < HAS_SKIP_LOCKED:
            needed = f"SKIP LOCKED needs MariaDB 10.6, and this server is {version}"
            self.refused = {LockOptions.SkipLocked: needed}
