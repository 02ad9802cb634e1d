"""An engine for each database, connected to a script instead of a server.

SQLAlchemy's own handshake tells each dialect its version, and MariaDB from MySQL, as a real
connection would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
from sqlalchemy import Engine, create_engine, event

from sa_doclock import LockingSession, LockOptions
from sa_doclock.dialects import strategy_for
from tests.sql.driver import (
    Connection,
    Cursor,
    ODBCConnection,
    PsycopgConnection,
    PymssqlConnection,
    PyMySQLConnection,
)
from tests.sql.models import Order
from tests.sql.script import Script
from tests.sql.sqlite_file import serving_file


class Error(Exception):
    """The errors of a driver, one tree for all of them."""


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
        return _engine("mysql+pymysql://", script, PyMySQLConnection, paramstyle="format")

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
    return _engine("mssql+pyodbc://", script, ODBCConnection, paramstyle="qmark", **module)


def pymssql(script: Script) -> Engine:
    """SQL Server 2022 behind pymssql."""
    script.handshake = _SQL_SERVER
    return _engine("mssql+pymssql://", script, PymssqlConnection, paramstyle="pyformat")


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


def _engine(
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
    """Take a lock, limited in time, by which SQL Server is asked all that is asked once."""
    with LockingSession(engine) as session:
        session.get_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=1)


@contextmanager
def serving(
    name: str, connect: Callable[[Script], Engine] | None = None
) -> Iterator[tuple[Engine, Script]]:
    """Yield an engine that has connected before, and what is sent to it from now on."""
    script = Script()
    with ExitStack() as stack:
        if name == "sqlite":
            engine = stack.enter_context(serving_file(script))
        else:
            engine = (connect or SERVERS[name])(script)
            stack.callback(engine.dispose)
        strategy = strategy_for(engine)  # connects, and asks what has to be asked once
        if name == "mssql" and strategy.compatible is None:
            take_first_lock(engine)
        script.sent.clear()
        event.listen(engine, "reset", lambda *_: script.note("(back to the pool)", ()))
        yield engine, script
