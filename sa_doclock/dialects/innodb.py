"""The locks of InnoDB: the common part of MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from sqlalchemy import Connection, Integer, Table, TextClause, text
from sqlalchemy.engine import Dialect

from ..errors import LockFailed, LockNotAvailable, LockNotSupported
from ..lock_info import ACTIVE, IDLE, Identity, LockConnection
from ..options import LockOptions, base_of
from ..pool import ExecuteStatement, on_return, withdraw
from .base import (
    AUTOCOMMIT,
    READ_COMMITTED,
    REPEATABLE_READ,
    LockMonitoring,
    LockStrategy,
    NativeCode,
)
from .key_names import short_name
from .locking import schema_of
from .monitoring import connections_by_id

_STORAGE_ENGINE = text(
    "SELECT engine FROM information_schema.tables "
    "WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name = :name"
)

_IN_TRANSACTION = 1  # SERVER_STATUS_IN_TRANS; set by COMMIT AND CHAIN, completion_type=CHAIN
# SHOW leaves out the variables that a server does not have; SELECT @@wsrep_on is an error there.
_SETTINGS = (
    "SHOW GLOBAL VARIABLES WHERE variable_name IN ('innodb_rollback_on_timeout', "
    "'wsrep_on', 'wsrep_provider', "
    "'group_replication_group_name', 'group_replication_single_primary_mode')"
)

_READ_ONLY = "a read-only {} cannot lock rows; read with SnapshotRead"
_GALERA = "a Galera cluster"
_LONGEST_NAME = 64
# The server detects no deadlock between named locks and row locks, so every wait has a limit.
# A limit of -1 waits for ever on MySQL, and is an error on MariaDB.
_TAKE_KEY = text("SELECT GET_LOCK(:name, @@innodb_lock_wait_timeout)")
_TRY_KEY = text("SELECT GET_LOCK(:name, 0)")
# The commands of SHOW PROCESSLIST, of a connection that holds a lock or waits for one.
_STATES = {"Sleep": IDLE, "Query": ACTIVE, "Execute": ACTIVE}


class InnoDBLocks(LockStrategy):
    # At REPEATABLE READ the first plain SELECT of any table fixes what the details look
    # like, and a lock granted later shows a fresh header over stale details.
    levels = {
        LockOptions.ForUpdate: (READ_COMMITTED,),
        LockOptions.SharedRead: (READ_COMMITTED,),
        LockOptions.SnapshotRead: (REPEATABLE_READ,),
    }
    reports_idle = True
    # Where most rows of a table are asked for, the optimizer reads all of it, and FOR UPDATE
    # waits for every row that is read.
    by_keys_hint = "FORCE INDEX (PRIMARY)"
    refusals = {
        # ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION
        1792: (LockNotSupported, _READ_ONLY.format("transaction")),
        # ER_OPTION_PREVENTS_STATEMENT, --read-only
        1290: (LockNotSupported, _READ_ONLY.format("server")),
    }

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self._lockable: set[tuple[str | None, str]] = set()
        self._database = dialect.default_schema_name or ""

    def note_server(self, connection: Connection) -> None:
        # innodb_rollback_on_timeout is off by default: error 1205 undoes the statement alone.  The
        # query goes past SQLAlchemy, which would begin a transaction on a Connection of the caller.
        cursor: Any = connection.connection.cursor()
        try:
            cursor.execute(_SETTINGS)
            settings = {str(name).lower(): str(value).upper() for name, value in cursor.fetchall()}
        finally:
            cursor.close()
        self.cluster = _cluster(settings)
        if settings.get("innodb_rollback_on_timeout") == "ON":
            codes = self.rolls_back_transaction | {1205}
            self.rolls_back_transaction = self.requires_rollback = codes

    def check_table(self, connection: Connection, table: Table) -> None:
        schema = schema_of(connection, table)
        if (schema, table.name) in self._lockable:
            return
        found = connection.execute(_STORAGE_ENGINE, {"schema": schema, "name": table.name}).first()
        if found is not None and str(found[0]).upper() != "INNODB":
            # MyISAM, Aria and MEMORY accept FOR UPDATE, lock nothing and say nothing.
            what = f"is stored by {found[0]}" if found[0] else "is a view"
            raise LockNotSupported(
                f"table {table.name!r} {what}, which has no row locks to hold; "
                f"ALTER TABLE {table.name} ENGINE=InnoDB"
            )
        if found is not None:
            self._lockable.add((schema, table.name))

    def check_autocommit(self, connection: Connection) -> None:
        driver: Any = connection.connection.dbapi_connection
        # PyMySQL, mysqlclient, aiomysql, asyncmy have a method; mysql-connector a property
        getter = getattr(driver, "get_autocommit", None)
        if getter() if getter else driver.autocommit:
            raise LockNotSupported(AUTOCOMMIT)

    def is_idle(self, dbapi_connection: Any) -> bool:
        driver = getattr(dbapi_connection, "driver_connection", dbapi_connection)
        # PyMySQL, aiomysql: the status in the last OK packet, as after COMMIT; a SELECT has none.
        status = getattr(driver, "server_status", None)
        if isinstance(status, int):
            return not status & _IN_TRANSACTION
        return getattr(driver, "in_transaction", None) is False  # mysql-connector

    def begin(self, connection: Connection, lock: LockOptions, seconds: float | None) -> None:
        if base_of(lock) is LockOptions.SnapshotRead:
            connection.exec_driver_sql("START TRANSACTION READ ONLY")

    def before_rollback(self, connection: Connection) -> None:
        # Where another node's commit has ended the transaction, and no statement has failed since,
        # the first ROLLBACK fails with 1213; the second, which is SQLAlchemy's, does not.
        driver_error: Any = connection.dialect.loaded_dbapi.Error
        if self.cluster == _GALERA and not (connection.closed or connection.invalidated):
            with suppress(driver_error):
                connection.connection.rollback()

    def take_key(
        self, connection: Connection, key: str, lock: LockOptions, seconds: float | None
    ) -> type[LockFailed] | None:
        # A name is valid in all databases of the server, and the lock belongs to the connection,
        # not to the transaction.  Each GET_LOCK that is granted needs a RELEASE_LOCK of its own; one
        # too many does nothing, so we note it before the answer is known.
        name = short_name(f"{self._database}.{key}", _LONGEST_NAME)
        release = ExecuteStatement(f"DO RELEASE_LOCK('{name}')")
        on_return(connection, release)
        statement = _TAKE_KEY if seconds is None else self.wait_for_key(seconds)
        if LockOptions.NoWait in lock:
            statement = _TRY_KEY
        # NULL, on MariaDB, is a wait that was ended by KILL QUERY or max_statement_time
        answer = connection.execute(statement, {"name": name}).scalar_one()
        if answer != 1:
            withdraw(connection, release)
            return LockNotAvailable
        return None

    def wait_for_key(self, seconds: float) -> TextClause:
        """Return GET_LOCK of ``:name``, with this limit."""
        raise TypeError(f"{type(self).__name__} must say how long GET_LOCK waits")

    def longest_wait(self, connection: Connection) -> float | None:
        return float(connection.exec_driver_sql("SELECT @@innodb_lock_wait_timeout").scalar_one())

    def native_code(self, orig: BaseException) -> NativeCode | None:
        # mysql-connector and mariadb-connector; PyMySQL, mysqlclient, aiomysql, asyncmy
        code = getattr(orig, "errno", None) or (orig.args[0] if orig.args else None)
        return code if isinstance(code, int) else None


def _cluster(settings: Mapping[str, str]) -> str | None:
    """Return what the server is a node of, where several nodes take writes."""
    # https://mariadb.com/kb/en/galera-cluster-system-variables/; Percona XtraDB Cluster has the same
    if settings.get("wsrep_on") == "ON" and settings.get("wsrep_provider") not in {"", "NONE"}:
        return _GALERA
    # https://dev.mysql.com/doc/refman/en/group-replication-system-variables.html
    if (
        settings.get("group_replication_single_primary_mode") == "OFF"
        and settings["group_replication_group_name"]
    ):
        return "a group of several primaries (Group Replication)"
    return None


class InnoDBMonitoring(LockMonitoring):
    holders_query: ClassVar[TextClause]
    """The holders: id of the connection, whether it has locked rows, whether it holds these."""

    connections_query: ClassVar[TextClause]
    """The columns of :func:`connections_by_id`."""

    def connection_id(self, connection: Connection) -> int | None:
        driver: Any = connection.connection.driver_connection
        number = getattr(driver, "thread_id", None)  # a method; not of mysql-connector
        found = number() if callable(number) else getattr(driver, "connection_id", number)
        return found if isinstance(found, int) else None

    def holders(
        self, connection: Connection, header: Table, keys: Sequence[Identity], *, shared: bool
    ) -> Mapping[int, bool]:
        parameters = {
            "schema": schema_of(connection, header),
            "name": header.name,
            "keys": lock_data(connection.dialect, header, keys),
            "shared": shared,
        }
        ranks = {
            number or 0: (bool(certain), bool(certain or rows))
            for number, rows, certain in connection.execute(self.holders_query, parameters)
        }
        best = max(ranks.values(), default=None)
        return {number: rank[0] for number, rank in ranks.items() if rank == best}

    def describe(
        self, connection: Connection, ids: Collection[int]
    ) -> Mapping[int, LockConnection]:
        found = connection.execute(self.connections_query, {"ids": sorted(ids)})
        return connections_by_id(found, _STATES)


def lock_data(dialect: Dialect, header: Table, keys: Sequence[Identity]) -> list[str]:
    """Return the keys as InnoDB writes them in LOCK_DATA, without those that it writes as bytes."""
    convert = [column.type.bind_processor(dialect) for column in header.primary_key]
    whole = [isinstance(column.type, Integer) for column in header.primary_key]
    found = []
    for key in keys:
        sent = [one(value) if one else value for one, value in zip(convert, key, strict=True)]
        words = [_in_lock_data(int(v) if i else v) for v, i in zip(sent, whole, strict=True)]
        if None not in words:
            found.append(", ".join(map(str, words)))
    return found


def _in_lock_data(value: Any) -> str | None:
    if isinstance(value, int):
        return str(int(value))
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else None
