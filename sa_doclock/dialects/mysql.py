"""MySQL 8 and later, and 5.7 as far as it goes: PyMySQL, mysqlclient, aiomysql, asyncmy."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Select
from sqlalchemy.engine import Dialect

from ..errors import DeadlockDetected, LockNotAvailable, LockNotSupported
from ..options import LockOptions, base_of, milliseconds
from .innodb import InnoDBLocks


class MySQLLocks(InnoDBLocks):
    name = "mysql"
    # https://dev.mysql.com/doc/mysql-errors/en/server-error-reference.html
    # Far more exceed range_optimizer_max_mem_size, and the whole table is read and locked.
    max_parameters = 8_000
    failures = {
        1205: LockNotAvailable,  # ER_LOCK_WAIT_TIMEOUT: only the statement is undone
        3572: LockNotAvailable,  # ER_LOCK_NOWAIT
        1213: DeadlockDetected,  # ER_LOCK_DEADLOCK: the whole transaction is undone
    }
    server_limits = frozenset({1205})
    statement_limits = frozenset({3024})  # ER_QUERY_TIMEOUT: MAX_EXECUTION_TIME
    transaction_gone = transaction_dead = frozenset({1213})

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        # SQLAlchemy before 2.0.45 writes LOCK IN SHARE MODE OF .., which no MySQL understands
        self._spells_share = hasattr(dialect, "use_mysql_for_share")

    def locks_one_table_of_join(self) -> bool:
        return self._version >= (8, 0, 1)

    def check_support(self, lock: LockOptions) -> None:
        modifier = lock & (LockOptions.NoWait | LockOptions.SkipLocked)
        if modifier and self._version < (8, 0, 1):
            raise LockNotSupported(f"{modifier} needs MySQL 8.0.1, this is {self._version}")
        if base_of(lock) is LockOptions.SharedRead and not self._spells_share:
            raise LockNotSupported("SharedRead on MySQL needs SQLAlchemy 2.0.45 or newer")

    def timed(self, statement: Select[Any], seconds: float) -> Select[Any]:
        # innodb_lock_wait_timeout counts whole seconds, and what is set on a connection
        # goes back to the pool with it; the optimizer hint does neither.
        return self.limited(statement, seconds)

    def limited(self, statement: Select[Any], seconds: float) -> Select[Any]:
        return statement.prefix_with(f"/*+ MAX_EXECUTION_TIME({milliseconds(seconds)}) */")

    def may_wait_again(self, connection: Connection) -> bool:
        whole = connection.exec_driver_sql("SELECT @@innodb_rollback_on_timeout").scalar_one()
        return not whole

    @property
    def _version(self) -> tuple[Any, ...]:
        return self.server_version or (8, 0, 1)
