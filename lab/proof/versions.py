"""The versions and settings that a result depends on."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import sqlalchemy as sa

from lab.proof.page import Part, table

_PACKAGES = ("sa-doclock", "SQLAlchemy", "pyodbc", "pymssql", "mssql-python", "psycopg", "PyMySQL")
_ROOT = Path(__file__).parents[2]
_FACTS: Mapping[str, Mapping[str, str]] = {
    "mssql": {
        "server": "SELECT @@VERSION",
        "edition": "SELECT CAST(SERVERPROPERTY('Edition') AS nvarchar(100))",
        "collation of the database": (
            "SELECT CAST(DATABASEPROPERTYEX(DB_NAME(), 'Collation') AS nvarchar(100))"
        ),
        "READ_COMMITTED_SNAPSHOT": (
            "SELECT is_read_committed_snapshot_on FROM sys.databases WHERE database_id = DB_ID()"
        ),
        "SNAPSHOT allowed": (
            "SELECT snapshot_isolation_state FROM sys.databases WHERE database_id = DB_ID()"
        ),
        "compatibility level": (
            "SELECT compatibility_level FROM sys.databases WHERE database_id = DB_ID()"
        ),
        "optimized locking (NULL: this version has none)": (
            "SELECT CAST(DATABASEPROPERTYEX(DB_NAME(), 'IsOptimizedLockingOn') AS int)"
        ),
    },
    "postgresql": {"server": "SELECT version()"},
    "sqlite": {"server": "SELECT sqlite_version()"},
}


def versions(engine: sa.Engine) -> Part:
    """Return the versions and settings of server, driver and packages."""
    rows = [{"": name, "found": found} for name, found in _found(engine)]
    return Part("Versions", list(table(rows)))


def _found(engine: sa.Engine) -> Iterator[tuple[str, str]]:
    with engine.connect() as connection:
        for name, query in _FACTS.get(engine.dialect.name, {"server": "SELECT VERSION()"}).items():
            yield name, _text_of_answer(connection, query)
    yield "driver", f"{engine.dialect.name}+{engine.dialect.driver}"
    yield "Python", f"{platform.python_version()} on {platform.platform()}"
    for package in _PACKAGES:
        yield package, _version(package)
    yield "commit", _commit()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _text_of_answer(connection: sa.Connection, query: str) -> str:
    try:
        return " ".join(str(connection.exec_driver_sql(query).scalar()).split())
    except sa.exc.DBAPIError as error:
        connection.rollback()
        return f"could not be asked: {type(error.orig).__name__}"


def _commit() -> str:
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "not known: no repository"
