"""MariaDB 10.6 and later, whether the URL says mariadb or mysql."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sqlalchemy import Connection, Select, TextClause, text

from ..errors import DeadlockDetected, LockNotAvailable, LockNotSupported, SnapshotConflict
from ..options import LockOptions, milliseconds
from .base import sent_as
from .innodb import InnoDBLocks


class MariaDBLocks(InnoDBLocks):
    name = "mariadb"
    # https://mariadb.com/kb/en/mariadb-error-codes/
    # From 1000 on, an IN list becomes a subquery, and the whole table is read and locked:
    # https://mariadb.com/kb/en/conversion-of-big-in-predicates-into-subqueries/
    max_parameters = 900
    failures = {
        1205: LockNotAvailable,  # ER_LOCK_WAIT_TIMEOUT; NOWAIT gives the same number
        1213: DeadlockDetected,  # ER_LOCK_DEADLOCK: the whole transaction is undone
        1020: SnapshotConflict,  # ER_CHECKREAD: innodb_snapshot_isolation, on since 11.6.2
    }
    statement_limits = frozenset({1969})  # ER_STATEMENT_TIMEOUT: max_statement_time
    transaction_gone = transaction_dead = frozenset({1213, 1020})

    def locks_one_table_of_join(self) -> bool:
        return False  # there is no FOR UPDATE OF: MDEV-17514

    def check_support(self, lock: LockOptions) -> None:
        version = self.server_version or (10, 6)
        if LockOptions.SkipLocked in lock and version < (10, 6):
            raise LockNotSupported(f"SKIP LOCKED needs MariaDB 10.6, this is {version}")

    def timed(self, statement: Select[Any], seconds: float) -> Select[Any]:
        # Whole seconds, rounded up: a fraction is taken for NOWAIT.  Also where the limit is
        # shorter, since it takes the place of innodb_lock_wait_timeout, which may be shorter still.
        return statement.suffix_with(f"WAIT {math.ceil(seconds)}")

    def waiting(
        self, connection: Connection, lock: LockOptions, seconds: float | None
    ) -> AbstractContextManager[None]:
        if seconds is None or seconds == math.ceil(seconds):
            return nullcontext()
        limit = milliseconds(seconds) / 1000
        return sent_as(
            connection,
            lambda statement, _: f"SET STATEMENT max_statement_time={limit:.3f} FOR {statement}",
            "FOR UPDATE",
            "LOCK IN SHARE MODE",
        )

    def wait_for_key(self, seconds: float) -> TextClause:
        return text(f"SELECT GET_LOCK(:name, {milliseconds(seconds) / 1000:.3f})")
