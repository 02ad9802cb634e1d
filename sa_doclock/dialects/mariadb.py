"""MariaDB 10.6 and later, whether the URL says mariadb or mysql."""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import Select, TextClause, text

from ..errors import DeadlockDetected, LockNotAvailable, LockNotSupported, SnapshotConflict
from ..options import LockOptions, milliseconds
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
    refusals = InnoDBLocks.refusals | {
        1969: (LockNotAvailable, "max_statement_time ended the wait; try again later"),
    }
    transaction_gone = transaction_dead = frozenset({1213, 1020})

    def locks_one_table_of_join(self) -> bool:
        return False  # there is no FOR UPDATE OF: MDEV-17514

    def check_support(self, lock: LockOptions) -> None:
        version = self.server_version or (10, 6)
        if LockOptions.SkipLocked in lock and version < (10, 6):
            raise LockNotSupported(f"SKIP LOCKED needs MariaDB 10.6, this is {version}")

    def timed(self, statement: Select[Any], seconds: float) -> Select[Any]:
        # Whole seconds, rounded up: a fraction is taken for NOWAIT.
        return statement.suffix_with(f"WAIT {math.ceil(seconds)}")

    def wait_for_key(self, seconds: float) -> TextClause:
        return text(f"SELECT GET_LOCK(:name, {milliseconds(seconds) / 1000:.3f})")
