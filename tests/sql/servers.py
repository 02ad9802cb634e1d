"""An engine for each database, connected to a script instead of a server. SQLite itself runs, on a file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import psycopg
from sqlalchemy import Engine, create_engine, event, insert

from sa_doclock import LockingSession, LockOptions
from sa_doclock.dialects import strategy_for
from tests.sql.driver import (
    Connection,
    Cursor,
    ODBCConnection,
    PsycopgConnection,
    PymssqlConnection,
    PyMySQLConnection,
    Script,
)
from tests.sql.models import Base, Order

# --------------------------------------------------------------------------------------------------
# SQLite itself, on a file; its statements are recorded as for the scripted servers.


class _Cursor(sqlite3.Cursor):
    def execute(self, sql: str, parameters: Any = ()) -> _Cursor:
        assert isinstance(self.connection, _Connection)
        self.connection.script.note(sql, parameters)
        super().execute(sql, parameters)
        return self


class _Connection(sqlite3.Connection):
    script: Script

    def cursor(self, *_: object) -> Any:
        return _Cursor(self)

    def commit(self) -> None:
        self.script.note("(commit)", ())
        super().commit()

    def rollback(self) -> None:
        self.script.note("(rollback)", ())
        super().rollback()


@contextmanager
def serving_file(script: Script) -> Iterator[Engine]:
    """Yield an engine on a file in which every table has one row of ones."""
    with TemporaryDirectory() as folder:
        for name, contents in _filled_files().items():
            Path(folder, name).write_bytes(contents)
        engine = _engine(Path(folder, "shop.db"), script)
        engine.connect().close()
        yield engine
        engine.dispose()


def _engine(path: Path, script: Script) -> Engine:
    def connect(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = _Connection(*args, **options)
        sqlite3.Cursor(connection).execute("PRAGMA synchronous = OFF")
        sqlite3.Cursor(connection).execute("ATTACH ? AS books", (str(path.with_name("books")),))
        connection.script = script
        return connection

    return create_engine(f"sqlite:///{path}", connect_args={"factory": connect})


@cache  # all scripts share the same files: filling them takes longer than most tests
def _filled_files() -> Mapping[str, bytes]:
    script = Script()
    with TemporaryDirectory() as folder:
        engine = _engine(Path(folder, "shop.db"), script)
        with engine.begin() as connection:
            Base.metadata.create_all(connection)
            for table in Base.metadata.sorted_tables:
                row = {column.name: script.values.get(column.name, 1) for column in table.columns}
                connection.execute(insert(table).values(row))
        engine.dispose()
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


# --------------------------------------------------------------------------------------------------
# An engine for each database, connected to a script instead of a server.
#
# SQLAlchemy's own handshake tells each dialect its version, and MariaDB from MySQL, as a real
# connection does.


class Error(Exception):
    """The errors of a driver, in one hierarchy for all drivers."""


class DatabaseError(Error):
    pass


class OperationalError(DatabaseError):
    pass


class ProgrammingError(DatabaseError):
    pass


class InternalError(DatabaseError):
    pass


_ERRORS: Mapping[str, type[Error]] = {
    **dict.fromkeys(("InterfaceError", "DataError", "IntegrityError"), DatabaseError),
    "NotSupportedError": DatabaseError,
    "InternalError": InternalError,
    "Error": Error,
    "DatabaseError": DatabaseError,
    "OperationalError": OperationalError,
    "ProgrammingError": ProgrammingError,
}


def mysql(version: str, level: str = "REPEATABLE-READ") -> Callable[[Script], Engine]:
    """MySQL or MariaDB, as ``SELECT VERSION()`` says, behind PyMySQL."""

    def connect(script: Script) -> Engine:
        script.handshake = {
            "VERSION()": version,
            "transaction_isolation": level,
            "tx_isolation": level,
            "@@sql_mode": "",
            "lower_case_table_names": "0",
            "SELECT DATABASE()": "shop",
            "innodb_rollback_on_timeout": [("innodb_rollback_on_timeout", "OFF")],
            "SET NAMES": (),
            "information_schema.tables": "InnoDB",
            "SHOW CREATE TABLE": ("shop_order", "CREATE TABLE `shop_order` (\n) ENGINE=InnoDB"),
            "SHOW FULL TABLES": ("shop_order", "BASE TABLE"),
        }
        return _engine_servers("mysql+pymysql://", script, PyMySQLConnection, paramstyle="format")

    return connect


def postgresql(script: Script) -> Engine:
    """PostgreSQL behind psycopg."""
    script.handshake = {
        "pg_catalog.version()": "PostgreSQL 18.4 on x86_64-pc-linux-gnu",
        "relhassubclass": [("r", False)],
        "relrowsecurity": False,
        "current_schemas(": "public",
        "show transaction isolation level": "read committed",
        "show standard_conforming_strings": "on",
        "current_setting": ("0", ""),
        "pg_stat_replication": 0,
    }
    return create_engine(
        "postgresql+psycopg://",
        creator=lambda: PsycopgConnection(script),
        module=psycopg,
        use_native_hstore=False,
    )


def pyodbc(script: Script) -> Engine:
    """SQL Server 2022 behind pyodbc."""
    script.handshake = _SQL_SERVER
    module = {"Cursor": Cursor, "SQL_WVARCHAR": -9, "SQL_VARCHAR": 12, "version": "5.3.0"}
    return _engine_servers("mssql+pyodbc://", script, ODBCConnection, paramstyle="qmark", **module)


def pymssql(script: Script) -> Engine:
    """SQL Server 2022 behind pymssql."""
    script.handshake = _SQL_SERVER
    return _engine_servers("mssql+pymssql://", script, PymssqlConnection, paramstyle="pyformat")


_SQL_SERVER_TELLS = "Microsoft SQL Server 2022 - 16.0.4135.4 (X64)"
_SQL_SERVER: Mapping[str, Any] = {
    "ProductVersion": "16.0.4135.4",
    "@@version": _SQL_SERVER_TELLS,
    "EngineEdition": (_SQL_SERVER_TELLS, 3, None),
    "schema_name()": "dbo",
    "test max support": "x",
    "fn_listextendedproperty": 1,
    "sys.system_views": "dm_exec_sessions",
    "transaction_isolation_level": "READ COMMITTED",
    "@@LOCK_TIMEOUT": -1,
    "deadlock_priority": 0,
    "temporal_type": 0,
    "Updateability": "READ_WRITE",
    "CONCAT(DB_NAME()": "shop.dbo",
}


def _engine_servers(
    url: str, script: Script, connection: type[Connection], *, paramstyle: str, **module: Any
) -> Engine:
    types = dict.fromkeys(("STRING", "NUMBER", "DATETIME", "BINARY"), object())
    names = {"paramstyle": paramstyle, "threadsafety": 1, "__version__": "2.0.0"}
    fake = SimpleNamespace(
        connect=lambda *_, **__: connection(script), **names, **types, **_ERRORS, **module
    )
    return create_engine(url, module=fake)


SERVERS: Mapping[str, Callable[[Script], Engine]] = {
    "postgresql": postgresql,
    "mysql": mysql("9.7.0"),
    "mysql-5.7": mysql("5.7.44"),
    "mariadb": mysql("11.8.9-MariaDB"),
    "mssql": pyodbc,
}
DATABASES = (*SERVERS, "sqlite")


def take_first_lock(engine: Engine) -> None:
    """Take a lock with a time limit, so that the engine asks its one-time questions of SQL Server."""
    with LockingSession(engine) as session:
        session.get_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=1)


@contextmanager
def serving(
    name: str, connect: Callable[[Script], Engine] | None = None
) -> Iterator[tuple[Engine, Script]]:
    """Yield an engine that connected before, and the statements sent to it from now on."""
    script = Script()
    with ExitStack() as stack:
        if name == "sqlite":
            engine = stack.enter_context(serving_file(script))
        else:
            engine = (connect or SERVERS[name])(script)
            stack.callback(engine.dispose)
        strategy = strategy_for(engine)  # connects, and asks the one-time questions
        if name == "mssql" and strategy.compatible is None:
            take_first_lock(engine)
        script.sent.clear()
        event.listen(engine, "reset", lambda *_: script.note("(back to the pool)", ()))
        yield engine, script
