"""A scripted SQL Server: a DBAPI shaped like pyodbc, behind SQLAlchemy's own dialect.

The model follows Microsoft's documentation:

- With autocommit off a transaction is always open, starting at connect. Switching autocommit on
  commits it (ODBC, "SQL_ATTR_AUTOCOMMIT").
- ALTER DATABASE in a transaction is error 226 ("Database Engine events and errors").
- Others see the writes of a transaction when it commits; a rollback discards them.

The test supplies the rest: the settings, blocking sessions, refused statements and the state that
ALTER DATABASE leaves.  The script proves which statements are sent, in which order and in which
transaction.  It proves nothing about a real SQL Server.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine, create_engine
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.mssql.pyodbc import MSDialect_pyodbc
from sqlalchemy.pool import NullPool

URL = "mssql+scripted://dba@server/sales?driver=none"
Rows = list[tuple[Any, ...]]


class Error(Exception):
    """The driver's errors, as pyodbc raises them: SQLSTATE, then text with the native number."""


class DatabaseError(Error):
    pass


class ProgrammingError(DatabaseError):
    pass


class Sent(NamedTuple):
    """A statement, and whether it ran in autocommit mode."""

    sql: str
    autocommit: bool


@dataclass
class Server:
    """One database as the test sets it up, and the statements sent to it."""

    name: str = "sales"
    snapshot: int = 0
    read_committed_snapshot: bool = False
    transactions: Rows = field(default_factory=list)
    sessions: Rows = field(default_factory=list)
    refuses: dict[str, Error] = field(default_factory=dict)  # by a word in the SQL
    lands_on: int | None = None  # the state after ALTER DATABASE, if not the requested one
    versions: list[str] | None = None  # committed rows of the version table; None: no table
    isolation: str = "READ COMMITTED"
    sent: list[Sent] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)

    def altered(self) -> list[str]:
        """Return the ALTER DATABASE statements, in order."""
        return [sent.sql for sent in self.sent if sent.sql.startswith("ALTER DATABASE")]

    def about_settings(self) -> list[str]:
        """Return a summary of each query or change of the settings."""
        names = {"sys.databases": "ask", "dm_tran_database": "who", "dm_exec_sessions AS s": "who"}
        found = []
        for sql, _ in self.sent:
            if sql.startswith("ALTER DATABASE"):
                found.append(sql.removeprefix("ALTER DATABASE CURRENT SET "))
            found += [short for mark, short in names.items() if mark in sql][:1]
        return found


class Connection:
    """One session; a transaction is always open unless autocommit is on."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._autocommit = False
        self.isolation = server.isolation
        self.versions = _copy(server.versions)
        server.connections.append(self)

    @property
    def autocommit(self) -> bool:
        return self._autocommit

    @autocommit.setter
    def autocommit(self, value: bool) -> None:
        if value and not self._autocommit:
            self.commit()
        self._autocommit = value

    def cursor(self) -> Cursor:
        return Cursor(self)

    def commit(self) -> None:
        self.server.versions = _copy(self.versions)

    def rollback(self) -> None:
        self.versions = _copy(self.server.versions)

    def close(self) -> None:
        self.rollback()

    def add_output_converter(self, sqltype: int, convert: object) -> None:
        """Accept the dialect's converter for DATETIMEOFFSET."""


class Cursor:
    """Answers queries; SQL unknown to the model is an error of the test."""

    arraysize = 1
    rowcount = 1

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.rows: Rows = []
        self.description: Sequence[tuple[Any, ...]] | None = None

    def nextset(self) -> bool:
        return False

    def setinputsizes(self, sizes: object) -> None:
        """Ignore the types."""

    def close(self) -> None:
        self.rows = []

    def fetchone(self) -> tuple[Any, ...] | None:
        return self.rows.pop(0) if self.rows else None

    def fetchall(self) -> Rows:
        rows, self.rows = self.rows, []
        return rows

    def execute(self, sql: str, *_: object) -> None:
        server, autocommit = self.connection.server, self.connection.autocommit
        server.sent.append(Sent(sql, autocommit))
        for mark, error in server.refuses.items():
            if mark in sql:
                raise error
        if sql.startswith("ALTER DATABASE"):
            self._alter(sql)
        elif not self._write(sql):
            self._answer(self._read(sql))
        if autocommit:
            self.connection.commit()

    def _alter(self, sql: str) -> None:
        if not self.connection.autocommit:
            raise refusal(
                226, "ALTER DATABASE statement not allowed within multi-statement transaction."
            )
        server = self.connection.server
        wanted = int(" ON" in sql)
        reached = wanted if server.lands_on is None else server.lands_on
        if "READ_COMMITTED_SNAPSHOT" in sql:
            server.read_committed_snapshot = bool(reached)
        else:
            server.snapshot = reached

    def _write(self, sql: str) -> bool:
        self.description = None
        connection = self.connection
        if isolation := re.match(r"SET TRANSACTION ISOLATION LEVEL (.+)", sql):
            connection.isolation = isolation[1]
        elif "CREATE TABLE" in sql:
            connection.versions = connection.versions or []
        elif inserted := re.search(r"INSERT INTO .* VALUES \('(\w+)'\)", sql):
            assert connection.versions is not None
            connection.versions.append(inserted[1])
            self._answer(("version_num", [(inserted[1],)]))  # OUTPUT inserted.version_num
        elif deleted := re.search(r"DELETE FROM .* = '(\w+)'", sql):
            assert connection.versions is not None
            connection.versions.remove(deleted[1])
        else:
            return False
        return True

    def _answer(self, answer: tuple[str, Rows]) -> None:
        names, rows = answer
        self.rows = list(rows)
        self.description = [(name, str, None, None, None, None, None) for name in names.split()]

    def _read(self, sql: str) -> tuple[str, Rows]:
        server = self.connection.server
        session = "session_id login_name host_name program_name seconds"
        versions = self.connection.versions
        answers: list[tuple[str, str, Rows]] = [
            ("'ProductVersion'", "version", [("16.0.4135.4",)]),
            ("schema_name()", "name", [("dbo",)]),
            ("test max support", "text", [("x",)]),
            ("fn_listextendedproperty", "one", []),
            ("sys.system_views", "name", [("dm_exec_sessions",)]),
            ("transaction_isolation_level", "level", [(self.connection.isolation,)]),
            # Does the version table exist?  SQLAlchemy 2.0 and 2.1 ask differently.
            ("INFORMATION_SCHEMA", "name", [] if versions is None else [("version",)]),
            ("sys.objects", "name", [] if versions is None else [("sa_doclock_version",)]),
            ("version_num", "version_num", [(version,) for version in versions or ()]),
            ("dm_tran_database_transactions", session, server.transactions),
            ("dm_exec_sessions AS s", session, server.sessions),
            (
                "sys.databases",
                "name snapshot_isolation_state is_read_committed_snapshot_on",
                [(server.name, server.snapshot, server.read_committed_snapshot)],
            ),
        ]
        for mark, names, rows in answers:
            if mark in sql:
                return names, rows
        raise AssertionError(f"the scripted server has no answer to {sql!r}")


def refusal(number: int, message: str, sqlstate: str = "42000") -> ProgrammingError:
    """Return a server error in pyodbc's form."""
    driver = "[Microsoft][ODBC Driver 18 for SQL Server][SQL Server]"
    return ProgrammingError(sqlstate, f"[{sqlstate}] {driver}{message} ({number}) (SQLExecDirectW)")


def _copy(versions: list[str] | None) -> list[str] | None:
    return None if versions is None else list(versions)


class Driver:
    """The DBAPI module, with the pyodbc names that SQLAlchemy uses."""

    paramstyle = "qmark"
    version = "5.3.0"
    threadsafety = 1
    SQL_VARCHAR, SQL_WVARCHAR = 12, -9
    Error, DatabaseError, ProgrammingError = Error, DatabaseError, ProgrammingError
    InterfaceError = OperationalError = IntegrityError = InternalError = DataError = DatabaseError
    NotSupportedError = DatabaseError
    Cursor = Cursor
    server = Server()

    @classmethod
    def connect(cls, *_: object, **__: object) -> Connection:
        return Connection(cls.server)


class ScriptedDialect(MSDialect_pyodbc):
    """SQLAlchemy's pyodbc dialect on the scripted driver."""

    driver = "scripted"
    supports_statement_cache = True

    @classmethod
    def import_dbapi(cls) -> Any:
        return Driver


registry.register("mssql.scripted", __name__, "ScriptedDialect")


@contextmanager
def serving(server: Server) -> Iterator[Engine]:
    """Yield an engine connected to this server, as all connections to ``URL`` are."""
    before, Driver.server = Driver.server, server
    try:
        yield create_engine(URL, poolclass=NullPool)
    finally:
        Driver.server = before


@contextmanager
def migrating(server: Server, *, begin: bool = True, **options: object) -> Iterator[Operations]:
    """Yield Alembic's online ``op``, in a transaction as env.py begins it."""
    with serving(server) as engine, engine.connect() as connection:
        context = MigrationContext.configure(connection, opts=options)
        with context.begin_transaction() if begin else nullcontext():
            yield Operations(context)
