"""A database of the matrix, as a test uses it, and the threads that use its connections."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry, NullPool, PoolProxiedConnection

from lab.servers import NAMES
from lab.tsql.live import SentStatements

# --------------------------------------------------------------------------------------------------
# The thread that uses each server connection, as SQLAlchemy's connection pool reports it.
#
# The server's id of a connection is known when the connection is opened, before any
# transaction, so a test knows who is about to wait even if the lock is the first statement.

_ASK_ID: Mapping[str, str] = {
    "postgresql": "SELECT pg_backend_pid()",
    "mysql": "SELECT CONNECTION_ID()",
    "mariadb": "SELECT CONNECTION_ID()",
    "mssql": "SELECT @@SPID",
}


_numbers = itertools.count(1)


class ConnectionLog:
    """The connections that threads checked out of the engines under watch."""

    def __init__(self, database_name: str, *, pooled: bool = False) -> None:
        """Watch nothing yet; ``database_name`` decides how to ask a connection for its id.

        :param pooled: the server's id changes; the log names each connection, and the pooler keeps the name.
        """
        self._pooled = pooled
        self._ask_id = _ASK_ID.get(database_name)
        self._lock = threading.Lock()
        self._users: dict[int, tuple[int, int]] = {}  # id of the DBAPI object: (thread, server id)
        self._statements: dict[int, str] = {}

    def watch(self, engine: Engine) -> None:
        """Record from now on which threads use the connections of this engine."""
        event.listen(engine, "connect", self._connected)
        event.listen(engine, "checkout", self._checked_out)
        for end in ("checkin", "close", "detach", "invalidate"):
            event.listen(engine, end, self._let_go)

    def ids_of(self, thread: int) -> frozenset[int]:
        """Return the server's ids of the connections that this thread checked out."""
        with self._lock:
            return frozenset(
                server_id for user, server_id in self._users.values() if user == thread
            )

    def statement_of(self, thread: int) -> str | None:
        """Return the last statement that this thread began on SQLite since ``forget_statement``."""
        return self._statements.get(thread)

    def forget_statement(self, thread: int) -> None:
        """Begin a new step of this thread, without any statement so far."""
        self._statements.pop(thread, None)

    def _connected(self, dbapi_connection: DBAPIConnection, record: ConnectionPoolEntry) -> None:
        record.info["server_id"] = self._id_from_server(dbapi_connection)
        if isinstance(dbapi_connection, sqlite3.Connection):
            # SQLAlchemy calls this before SQLite tries to take the file's lock.
            dbapi_connection.set_trace_callback(self._begun)

    def _id_from_server(self, dbapi_connection: DBAPIConnection) -> int:
        if self._ask_id is None:
            return id(dbapi_connection)
        if not self._pooled and (known := _known_to_driver(dbapi_connection)):
            return known
        cursor = dbapi_connection.cursor()
        if self._pooled:
            number = next(_numbers)
            cursor.execute(f"SET application_name = '{number}'")
            dbapi_connection.commit()
            return number
        cursor.execute(self._ask_id)
        row = cursor.fetchone()
        cursor.close()
        dbapi_connection.rollback()  # the first transaction is the test's
        return 0 if row is None else int(row[0])

    def _begun(self, statement: str) -> None:
        self._statements[threading.get_ident()] = statement

    def _checked_out(
        self,
        dbapi_connection: DBAPIConnection,
        record: ConnectionPoolEntry,
        _proxy: PoolProxiedConnection,
    ) -> None:
        with self._lock:
            self._users[id(dbapi_connection)] = (threading.get_ident(), record.info["server_id"])

    def _let_go(self, dbapi_connection: DBAPIConnection | None, *_: object) -> None:
        with self._lock:
            self._users.pop(id(dbapi_connection), None)


def _known_to_driver(dbapi_connection: Any) -> int | None:
    """Return the id that the server sent at connect, which psycopg and PyMySQL keep.

    A query for it takes three round trips, for each of the thousands of connections of a test run.
    """
    if info := getattr(dbapi_connection, "info", None):
        return getattr(info, "backend_pid", None)
    return getattr(dbapi_connection, "server_thread_id", (None,))[0]


# --------------------------------------------------------------------------------------------------
# One database of the matrix, as a test sees it.

#: PostgreSQL again, with sessions created with ``pipeline=True``.
PIPELINED = "postgresql-pipeline"

#: PostgreSQL again, behind a pooler; each pooler runs only if named.
PGPOOL = "pgpool"
PGBOUNCERS = ("pgbouncer-transaction", "pgbouncer-session")
POOLERS = (*PGBOUNCERS, PGPOOL)

#: Every column of the matrix. SQLite has two: WAL mode, and a rollback journal.
MATRIX = (*NAMES, PIPELINED, *POOLERS, "sqlite", "sqlite-journal")

# Limits the waits of the administrator's connection; the placeholder takes seconds.
_LOCK_TIMEOUT: Mapping[str, str] = {
    "postgresql": "SET lock_timeout = '{}s'",
    "mysql": "SET SESSION lock_wait_timeout = {}",
    "mariadb": "SET SESSION lock_wait_timeout = {}",
    "mssql": "SET LOCK_TIMEOUT {}000",
    "sqlite": "PRAGMA busy_timeout = {}000",
}


def product(column: str) -> str:
    """Return the database of a matrix column: both SQLite columns map to ``sqlite``."""
    return "postgresql" if column in POOLERS else column.partition("-")[0]


class Database:
    """A private database of a test, and the engines made for it."""

    #: Seconds that creating or dropping a table waits for a lock that a test leaked.
    lock_timeout = 10

    def __init__(
        self, column: str, url: str, version: str, *, direct_url: str = "", standby_url: str = ""
    ) -> None:
        """Describe an existing database.

        :param direct_url: bypasses the pooler, if ``url`` leads to a pooler.
        :param standby_url: leads to the standby, if the pooler has a standby.
        """
        self.column = column
        self.name = product(column)
        self.url = url
        self.direct_url = direct_url or url
        self.standby_url = standby_url
        self.version = version
        self.connections = ConnectionLog(self.name, pooled=self.pooled)
        self.sent = SentStatements()  # only for SQL Server
        self._engines: list[sa.Engine] = []
        self._created: list[sa.MetaData] = []
        self._observer: sa.Engine | None = None
        self._poller: sa.Engine | None = None
        self._administrators: sa.Engine | None = None

    @property
    def pooled(self) -> bool:
        """True behind a pooler, where each transaction can have another connection id."""
        return self.column in POOLERS

    @property
    def connect_args(self) -> dict[str, Any]:
        """The arguments of the driver, as docs/poolers.md gives them."""
        psycopg = sa.make_url(self.url).drivername == "postgresql+psycopg"
        return {"prepare_threshold": None} if psycopg and self.column in PGBOUNCERS else {}

    def __repr__(self) -> str:
        return f"<{self.column}: {self.version}>"

    def engine(self, **options: Any) -> sa.Engine:
        """Make an engine and dispose of it when the test ends.

        :param options: for :func:`sqlalchemy.create_engine`.
        """
        options["connect_args"] = {**self.connect_args, **options.get("connect_args", {})}
        engine = _new_engine(self.url, **options)
        self.connections.watch(engine)
        self._engines.append(engine)
        if self.name == "mssql":
            self.sent.watch(engine)
        return engine

    def observer(self) -> sa.Engine:
        """Return an engine that looks at the server from outside: no transaction, no pool."""
        if self._observer is None:  # a new engine asks the server for its version and more
            self._observer = _new_engine(
                self.direct_url, poolclass=NullPool, isolation_level="AUTOCOMMIT"
            )
        return self._observer

    def poller(self) -> sa.Engine:
        """Return an engine like :meth:`observer`, but with a persistent connection, for frequent looks."""
        if self._poller is None:
            self._poller = _new_engine(
                self.direct_url, pool_size=1, pool_pre_ping=True, isolation_level="AUTOCOMMIT"
            )
            self._engines.append(self._poller)
        return self._poller

    def kept(self) -> Database:
        """Return the same database with separate engines, for objects that outlive the test."""
        ways = {"direct_url": self.direct_url, "standby_url": self.standby_url}
        return Database(self.column, self.url, self.version, **ways)

    def create(self, metadata: sa.MetaData) -> None:
        """Create these tables, empty; the end of the test drops them."""
        with self._administrator() as connection:
            try:
                metadata.create_all(connection, checkfirst=False)  # a check takes as long
            except sa.exc.DBAPIError:  # left by a killed run
                connection.rollback()
                metadata.drop_all(connection)
                metadata.create_all(connection)
            connection.commit()
        self._created.append(metadata)

    def drop_tables(self) -> None:
        """Drop the tables that this object created.

        :raises RuntimeError: a connection that the test left open still holds a lock.
        """
        try:
            with self._administrator() as connection:
                for metadata in reversed(self._created):
                    _drop(metadata, connection)
        except sa.exc.DBAPIError as exc:
            msg = "the tables cannot be dropped; does a session of this test still hold a lock?"
            raise RuntimeError(msg) from exc

    def close(self) -> None:
        """Dispose of the engines and drop the tables."""
        for engine in self._engines:
            engine.dispose()
        if self._created:
            self.drop_tables()

    @contextlib.contextmanager
    def _administrator(self) -> Iterator[sa.Connection]:
        if self._administrators is None:
            self._administrators = _new_engine(self.direct_url, poolclass=NullPool)
        with self._administrators.connect() as connection:
            connection.exec_driver_sql(_LOCK_TIMEOUT[self.name].format(self.lock_timeout))
            connection.commit()
            yield connection


def _new_engine(url: str, **options: Any) -> sa.Engine:
    if sa.make_url(url).get_driver_name() in ("psycopg", "psycopg2"):
        # The first connection would look up a type that no test uses, for thousands of engines per run.
        options.setdefault("use_native_hstore", False)
    return sa.create_engine(url, **options)


def _drop(metadata: sa.MetaData, connection: sa.Connection) -> None:
    try:
        metadata.drop_all(connection, checkfirst=False)
    except sa.exc.DBAPIError:  # the test dropped some
        connection.rollback()
        metadata.drop_all(connection)
    connection.commit()


def new_sqlite_file(column: str, folder: Path) -> Database:
    """Make an SQLite file in the journal mode of this matrix column."""
    path = folder / f"{column}.db"
    mode = "DELETE" if column == "sqlite-journal" else "WAL"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")  # WAL mode persists in the file
    return Database(column, f"sqlite:///{path}", f"SQLite {sqlite3.sqlite_version}, {mode}")
