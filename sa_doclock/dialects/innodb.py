"""The locks of InnoDB: the common part of MySQL and MariaDB."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from functools import partial
from itertools import count
from typing import Any, ClassVar, Final

from sqlalchemy import Connection, Integer, Table, TextClause
from sqlalchemy.engine import Dialect, TwoPhaseTransaction
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeEngine

from ..errors import DeadlockDetected, LockNotSupported, SnapshotConflict, WrongIsolation
from ..keys import Identity
from ..options import LockOptions, base_of
from ..pool import ExecuteStatement, is_registered, on_return
from .base import (
    AUTOCOMMIT,
    READ_COMMITTED,
    REPEATABLE_READ,
    Cluster,
    Ends,
    ErrorCode,
    ErrorCodes,
    IsolationLevels,
    Locked,
    LockMonitoring,
    LockStatements,
    LockStrategy,
    LockWaits,
    NativeCode,
    PlainReads,
    ServerClock,
    ServerHoldLimit,
    TransactionLifecycle,
    TransactionStatus,
    note_default_level,
)
from .cluster import GroupReplication, cluster_of
from .compatible_servers import find_server
from .connection import ask_driver, asked_here, socket_descriptor
from .error_codes import code_of, raised_within
from .innodb_named_locks import InnoDBNamedLocks
from .innodb_tables import StorageEngine, check_engine, check_view, engine_in_schema
from .names import schema_of
from .table_answers import kept_answer
from .transactions import SavepointMarks

_IN_TRANSACTION = 1  # SERVER_STATUS_IN_TRANS; set by COMMIT AND CHAIN, completion_type=CHAIN
# SHOW omits variables that a server does not have; SELECT @@wsrep_on would be an error.
_SETTINGS = (
    "SHOW GLOBAL VARIABLES WHERE variable_name IN ('innodb_rollback_on_timeout', "
    "'wsrep_on', 'wsrep_provider', 'version', 'version_comment', 'aurora_version', 'tidb_txn_mode', "
    "'group_replication_group_name', 'group_replication_single_primary_mode')"
)

_NO_SAVEPOINT = 1305  # ER_SP_DOES_NOT_EXIST
_TRANSACTION_IS_OPEN = 1568  # ER_CANT_CHANGE_TX_CHARACTERISTICS
# Only if trx_query is this very query is the answer current: INNODB_TRX is a cache that is refilled
# only after 0.1 s without a read (CACHE_MIN_IDLE_TIME_NS in trx0i_s.cc).
_LEVEL = (
    "SELECT trx_isolation_level, trx_query FROM information_schema.innodb_trx "
    "WHERE trx_mysql_thread_id = CONNECTION_ID() /*{}*/"
)
_CACHE_PAUSES = (0, 0.11, 0.15)  # seconds
# Threads: two threads may get the same number, but each asks about its own connection.
_tokens = count(1)
_READ_ONLY = "a read-only {} cannot lock rows. Read with SnapshotRead"
_OLD_LIMIT = "@doclock_hold_limit"  # in a variable of the connection, which saves a question


def _timestamp() -> TypeEngine[Any]:
    from sqlalchemy.dialects.mysql import DATETIME  # noqa: PLC0415  # loaded where it is used

    return DATETIME(fsp=6)


class SessionIsolation(IsolationLevels):
    """The levels of a product that cannot set only the next transaction's."""

    # At REPEATABLE READ, the first plain SELECT of any table fixes the snapshot of the details, and
    # a lock granted later shows a fresh header with stale details.
    levels = {
        LockOptions.ForUpdate: (READ_COMMITTED,),
        LockOptions.SnapshotRead: (REPEATABLE_READ,),
    }
    plain_reads = {
        READ_COMMITTED: PlainReads.PAST_WRITERS,
        # The first plain read opens the read view; locking reads do not.  "If you want to see the
        # 'freshest' state of the database, use either the READ COMMITTED isolation level or a
        # locking read": https://dev.mysql.com/doc/refman/8.4/en/innodb-consistent-read.html
        REPEATABLE_READ: PlainReads.PAST_WRITERS | PlainReads.OLDER,
        "SERIALIZABLE": PlainReads.CONFLICT,  # a plain read takes a shared lock
    }

    def ask_level(self, connection: Connection) -> str | None:
        # Without the privilege PROCESS, only the connection's level is readable, which excludes a
        # SET TRANSACTION for one transaction.
        with suppress(DBAPIError):
            for pause in _CACHE_PAUSES:
                time.sleep(pause)
                token = next(_tokens)
                found = ask_driver(connection, _LEVEL.format(token))
                if found and f"/*{token}*/" in str(found[0][1]):
                    return str(found[0][0])
        return super().ask_level(connection)


class InnoDBIsolation(SessionIsolation):
    def set_once(self, connection: Connection, level: str) -> None:
        # Without SESSION, COMMIT and ROLLBACK reset it.  SQLAlchemy would send SET SESSION and
        # COMMIT, before and after: four round trips.
        try:
            connection.exec_driver_sql(f"SET TRANSACTION ISOLATION LEVEL {level}")
        except DBAPIError as error:
            if error.orig is None or driver_code(error.orig) != _TRANSACTION_IS_OPEN:
                raise
            raise WrongIsolation(
                "a listener or the driver opened the transaction at another isolation level. Take the "
                "lock before any other statement"
            ) from error


# mysql-connector raises this without a number.  SQLAlchemy knows only the text of older versions,
# "MySQL Connection not available.", with a full stop.
_NOT_CONNECTED = "MySQL Connection not available"
_NO_NUMBER = -1
_SERVER_GONE = 2006  # CR_SERVER_GONE_ERROR

INNODB_CODES: Final[Mapping[NativeCode, ErrorCode]] = {
    # ER_LOCK_DEADLOCK: the whole transaction is undone
    1213: ErrorCode(DeadlockDetected, ends=Ends.TRANSACTION),
    # ER_LOCK_TABLE_FULL: the locks exceed the buffer pool, whoever holds them.
    1206: ErrorCode(ends=Ends.TRANSACTION),
    # ER_TABLE_DEF_CHANGED, "please retry transaction": nothing is undone
    1412: ErrorCode(
        SnapshotConflict,
        "DDL changed the table after the snapshot began. Run the whole transaction again",
    ),
    # ER_KEY_DOES_NOT_EXITS, of FORCE INDEX
    1176: ErrorCode(
        in_lock=LockNotSupported,
        why="the table has no index for the mapped key: it is not the PRIMARY KEY, and the unique index "
        "that the Table names is missing. Without an index the lock would include rows of other keys. "
        "Add the index",
    ),
    # ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION
    1792: ErrorCode(in_lock=LockNotSupported, why=_READ_ONLY.format("transaction")),
    # ER_OPTION_PREVENTS_STATEMENT, --read-only
    1290: ErrorCode(in_lock=LockNotSupported, why=_READ_ONLY.format("server")),
    # SQLAlchemy recognizes only the first of these, and not for each driver.
    _SERVER_GONE: ErrorCode(ends=Ends.CONNECTION),
    # CR_MALFORMED_PACKET: a client library in C cannot read an answer
    2027: ErrorCode(ends=Ends.CONNECTION),
    1053: ErrorCode(ends=Ends.CONNECTION),  # ER_SERVER_SHUTDOWN
    # ER_NET_PACKET_TOO_LARGE: "issues an ER_NET_PACKET_TOO_LARGE error and closes the connection",
    # https://dev.mysql.com/doc/refman/8.4/en/packet-too-large.html
    1153: ErrorCode(ends=Ends.CONNECTION),
}
"""The errors of both products."""


class InnoDBErrors(ErrorCodes):
    """The errors of one product.

    :param timeout_rolls_back: innodb_rollback_on_timeout is ON.
    """

    def __init__(self, *, timeout_rolls_back: bool = False) -> None:
        if timeout_rolls_back:
            self.codes = {**self.codes, 1205: self[1205]._replace(ends=Ends.TRANSACTION)}

    def native_code(self, orig: BaseException) -> NativeCode | None:
        code = driver_code(orig)
        return _SERVER_GONE if code == _NO_NUMBER and _NOT_CONNECTED in str(orig) else code

    def is_no_savepoint(self, error: DBAPIError) -> bool:
        """Return whether the error says that there is no such savepoint, or no transaction."""
        code = code_of(self, error)
        return code == _NO_SAVEPOINT or self[code].ends is Ends.TRANSACTION


class InnoDBStatements(LockStatements):
    # For most rows of a table, the optimizer scans it, and FOR UPDATE waits for every row it reads.
    by_keys_hint = "FORCE INDEX ({index})"
    # "If a secondary index is used in a search and the index record locks to be set are exclusive,
    # InnoDB also retrieves the corresponding clustered index records and sets locks on them".
    # Shared locks do not: https://dev.mysql.com/doc/refman/8.4/en/innodb-locks-set.html
    locked = Locked.SHARED_ENTRIES


class InnoDBMarks(SavepointMarks):
    """Savepoints: reading a transaction's id needs a privilege, on performance_schema or PROCESS."""

    def __init__(self, errors: InnoDBErrors, cluster: Cluster | None = None) -> None:
        super().__init__(errors.is_no_savepoint)
        self._cluster = cluster

    def mark_transaction(self, connection: Connection) -> object:
        if isinstance(self._cluster, GroupReplication):
            self._cluster.find_abort(connection)
        return super().mark_transaction(connection)

    def current_schema(self, connection: Connection) -> str | None:
        return _text_of(ask_driver(connection, "SELECT DATABASE()"))


class InnoDBStatus(TransactionStatus):
    def in_transaction(self, connection: Connection, cursor: Any = None) -> bool | None:
        # PyMySQL's status comes from the last OK packet, and rows come without one.
        if cursor is None or cursor.description:
            return None
        return _status(connection.connection.driver_connection)

    def has_open_transaction(self, connection: Connection) -> bool | None:
        # DDL commits before it fails, and a procedure may have committed: only the server knows.
        with closing(connection.connection.cursor()) as cursor:
            # Errors and rows carry no status; this returns an OK packet.
            cursor.execute("DO 0")
        return _status(connection.connection.driver_connection)

    def is_idle(self, dbapi_connection: Any) -> bool:
        driver = getattr(dbapi_connection, "driver_connection", dbapi_connection)
        return _status(driver) is False


# Public methods of the drivers' connections that send a statement and read its answer: query() of
# PyMySQL, mysqlclient, aiomysql and asyncmy, the others of mysql-connector.
_STATEMENT = frozenset({"query", "cmd_query", "cmd_ping", "get_rows", "commit", "rollback"})


class InnoDBLifecycle(TransactionLifecycle):
    def has_unread_answer(self, connection: Connection, error: BaseException) -> bool:
        driver: Any = connection.dialect.loaded_dbapi
        if not isinstance(error, driver.Error):
            return raised_within(connection, error, _STATEMENT)
        # An error of the socket: mysql-connector gives a read timeout the number of a server limit,
        # 3024, and claims that the connection was closed.
        if isinstance(error.__cause__, OSError):
            return True
        # "Packet sequence number wrong", from PyMySQL, aiomysql and asyncmy, has no number.
        if isinstance(error, driver.InternalError):
            return driver_code(error) is None
        # "Failed parsing OK packet", from mysql-connector
        unread = isinstance(error, driver.InterfaceError) and driver_code(error) == _NO_NUMBER
        return unread and raised_within(connection, error, _STATEMENT)

    def descriptor(self, driver_connection: Any) -> int | None:
        # no public name in PyMySQL, aiomysql, asyncmy and mysql-connector
        private = socket_descriptor(driver_connection, "_sock", "_writer", "_socket")
        return super().descriptor(driver_connection) if private is None else private


class InnoDBWaits(LockWaits):
    def longest(self, connection: Connection) -> float | None:
        return float(connection.exec_driver_sql("SELECT @@innodb_lock_wait_timeout").scalar_one())


class InnoDBHoldLimit(ServerHoldLimit):
    """The limit of an idle connection, by a session variable, which outlives the transaction.

    :param variable: the session variable with the seconds.
    :param expression: the seconds ``{limit}``, or the server's own limit if it is shorter.
    """

    def __init__(self, variable: str, expression: str) -> None:
        self._variable, self._expression = variable, expression
        self._restore = ExecuteStatement(f"SET SESSION {variable} = {_OLD_LIMIT}")

    def limit(self, connection: Connection, seconds: float) -> None:
        if is_registered(connection, self._restore):
            return  # already in force: keep the saved old value
        on_return(connection, self._restore)
        value = self._expression.format(limit=math.ceil(seconds))
        connection.exec_driver_sql(
            f"SET {_OLD_LIMIT} = @@SESSION.{self._variable}, SESSION {self._variable} = {value}"
        )


class InnoDBLocks(LockStrategy):
    status = InnoDBStatus()
    lifecycle = InnoDBLifecycle()
    named_locks: InnoDBNamedLocks
    errors: InnoDBErrors
    # "returns the current UTC date and time", with up to 6 digits of a second, as of the begin of
    # the statement: https://dev.mysql.com/doc/refman/8.4/en/date-and-time-functions.html
    clock = ServerClock("UTC_TIMESTAMP(6)", _timestamp)
    isolation: IsolationLevels = InnoDBIsolation()
    statements: LockStatements = InnoDBStatements()
    waits: LockWaits = InnoDBWaits()

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self.server_version: tuple[Any, ...] | None = dialect.server_version_info
        self.marks = InnoDBMarks(self.errors)

    def asking(self, connection: Connection) -> AbstractContextManager[Connection]:
        # No question here begins a transaction, opens a read view or uses up a SET TRANSACTION, as
        # ROLLBACK would: tests/integration/questions.
        return asked_here(connection)

    def note_server(self, connection: Connection) -> None:
        # @@transaction_isolation is the level of new transactions, even within a transaction.
        note_default_level(connection)
        # innodb_rollback_on_timeout is off by default: error 1205 undoes only the statement.
        settings = {
            str(name).lower(): str(value).upper()
            for name, value in ask_driver(connection, _SETTINGS)
        }
        words = filter(None, map(settings.get, ("version", "version_comment", "tidb_txn_mode")))
        version = " ".join((*words, *(["Aurora"] if settings.get("aurora_version") else [])))
        if not version:
            version = str(ask_driver(connection, "SELECT VERSION()")[0][0])
        self.compatible = find_server("mysql", version)
        if self.compatible is not None and not self.compatible.product.sets_next_level:
            self.isolation = SessionIsolation()
        self.cluster = cluster_of(settings)
        if settings.get("innodb_rollback_on_timeout") == "ON":
            self.errors = type(self.errors)(timeout_rolls_back=True)
        self.marks = InnoDBMarks(self.errors, self.cluster)

    def check_table(
        self,
        connection: Connection,
        table: Table,
        lock: LockOptions | None = None,
        seconds: float | None = None,
        *,
        adopted: bool = False,
    ) -> None:
        question = adopted, schema_of(connection, table), table.name
        ask = partial(self._is_lockable, connection, table, adopted=adopted)
        with self._raising_only_the_end():
            kept_answer(self.findings, connection, question, ask)

    def _is_lockable(self, connection: Connection, table: Table, *, adopted: bool) -> bool | None:
        found = self.storage_engine(connection, table)
        if found is None:
            return True if adopted else None
        if adopted and found.name is None:  # other tables have the rows
            with self.asking_schema(connection) as asked:
                check_view(asked, schema_of(connection, table), table.name)
        else:
            check_engine(table.name, found.name)
        return True

    @contextmanager
    def _raising_only_the_end(self) -> Iterator[None]:
        """Ignore a server error in a question, because the next statement raises it too.

        :raises DeadlockDetected: the transaction has ended, which the server reports once: the next
            statement would run in a new transaction.
        """
        try:
            yield
        except DBAPIError as error:
            if self.errors[code_of(self.errors, error)].ends is Ends.TRANSACTION:
                raise DeadlockDetected(
                    "the server chose this transaction as the victim of a deadlock. Run the whole "
                    "transaction again",
                    orig=error.orig,
                ) from error

    def storage_engine(self, connection: Connection, table: Table) -> StorageEngine | None:
        """Return the storage engine of this table, or None without such a table."""
        with self.asking_schema(connection) as asked:
            return engine_in_schema(asked, schema_of(connection, table), table.name)

    def asking_schema(self, connection: Connection) -> AbstractContextManager[Connection]:
        """Return a block with the connection for a question to information_schema."""
        return self.asking(connection)

    def check_autocommit(self, connection: Connection) -> None:
        driver: Any = connection.connection.dbapi_connection
        # PyMySQL, mysqlclient, aiomysql and asyncmy have a method; mysql-connector a property.  The
        # adapters of SQLAlchemy before 2.0.43 replace those of the asynchronous drivers by a
        # setter.
        own: Any = connection.connection.driver_connection
        getter = getattr(driver, "get_autocommit", getattr(own, "get_autocommit", None))
        if getter() if getter else driver.autocommit:
            raise LockNotSupported(AUTOCOMMIT)

    def begin(self, connection: Connection, lock: LockOptions, seconds: float | None) -> None:
        # With twophase=True, XA START has already begun the transaction (1399, ER_XAER_RMFAIL),
        # without READ ONLY.  At REPEATABLE READ it reads the same snapshot.
        two_phase = isinstance(connection.get_transaction(), TwoPhaseTransaction)
        if base_of(lock) is LockOptions.SnapshotRead and not two_phase:
            connection.exec_driver_sql("START TRANSACTION READ ONLY")

    def inserting(
        self, connection: Connection, key: str, seconds: float | None
    ) -> AbstractContextManager[bool]:
        # A duplicate key leaves a shared lock to the INSERT, so two that continue with FOR UPDATE
        # deadlock; so do two whose INSERT waited for one that was rolled back:
        # https://dev.mysql.com/doc/refman/en/innodb-locks-set.html, INSERT.
        if self.compatible is not None:
            return nullcontext(False)  # not every compatible product has named locks
        return self.named_locks.while_inserting(connection, key, seconds)


def _text_of(rows: Sequence[Sequence[Any]]) -> str | None:
    found = rows[0][0]
    return None if found is None else str(found)


def driver_code(orig: BaseException) -> int | None:
    """Return the server's error code in a driver's error."""
    # mysql-connector and mariadb-connector; PyMySQL, mysqlclient, aiomysql, asyncmy
    code = getattr(orig, "errno", None) or (orig.args[0] if orig.args else None)
    return code if isinstance(code, int) else None


def _status(driver: Any) -> bool | None:
    """Return SERVER_STATUS_IN_TRANS of the last answer that had it, or None if the driver keeps none."""
    # PyMySQL, aiomysql: the status in the last OK packet, as after COMMIT; a SELECT has none.
    status = getattr(driver, "server_status", None)
    if isinstance(status, int):
        return bool(status & _IN_TRANSACTION)
    found = getattr(driver, "in_transaction", None)  # mysql-connector
    return found if isinstance(found, bool) else None


class InnoDBMonitoring(LockMonitoring):
    holders_query: ClassVar[TextClause]
    """The holders: id of the connection, whether it has locked rows, whether it holds these."""

    connections_query: ClassVar[TextClause]
    """The rows of ``connections()``."""

    def connection_id(self, connection: Connection) -> int | None:
        driver: Any = connection.connection.driver_connection
        number = getattr(driver, "thread_id", None)  # a method; mysql-connector lacks it
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

    def connections(self, connection: Connection, ids: Collection[int]) -> Iterable[Sequence[Any]]:
        return connection.execute(self.connections_query, {"ids": ids})


def lock_data(dialect: Dialect, header: Table, keys: Sequence[Identity]) -> list[str]:
    """Return the keys as InnoDB writes them in LOCK_DATA, without keys that it writes as bytes."""
    convert = [column.type.bind_processor(dialect) for column in header.primary_key]
    whole = [isinstance(column.type, Integer) for column in header.primary_key]
    found = []
    for key in keys:
        sent = [
            to_sql(value) if to_sql else value for to_sql, value in zip(convert, key, strict=True)
        ]
        words = [_in_lock_data(int(v) if i else v) for v, i in zip(sent, whole, strict=True)]
        if None not in words:
            found.append(", ".join(map(str, words)))
    return found


def _in_lock_data(value: Any) -> str | None:
    if isinstance(value, int):
        return str(int(value))
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else None
