"""The connection of a command to its database, or the reason why it cannot run there."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from sqlalchemy import URL, Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import QueuePool

from ...dialects import product_of
from ...keys import printable
from .workload import first_line

_DRIVERS: Final = {
    "postgresql": ("psycopg", "postgresql"),
    "mysql": ("pymysql", "mysql"),
    "mariadb": ("pymysql", "mysql"),
    "mssql": ("pyodbc", "mssql"),
}
"""By database, a driver and the extra of sa-doclock that installs it."""


class BadUsage(Exception):
    """The command cannot be run as asked; the text tells the user the reason."""


class DatabaseTarget(NamedTuple):
    """A database to run on.

    :ivar url: without its password and parameters, for display.
    :ivar isolation: the level of a transaction that requests none.
    """

    engine: Engine
    url: str
    product: str
    version: str
    isolation: str


@contextmanager
def open_database(
    url: str | None, connections: int, *, patient: bool = True
) -> Iterator[DatabaseTarget]:
    """Connect, with a pool of this many connections; without a URL, to a temporary SQLite file.

    :param patient: SQLite waits two minutes for the file's lock, whatever the URL says.

    :raises BadUsage: it is not a URL, or there is no such database.
    """
    with ExitStack() as stack:
        parsed = stack.enter_context(_temporary_file()) if url is None else _parse(url)
        engine = _engine(parsed, connections, patient=patient)
        stack.callback(engine.dispose)
        yield _connect(engine)


@contextmanager
def _temporary_file() -> Iterator[URL]:
    with TemporaryDirectory(prefix="sa-doclock-", ignore_cleanup_errors=True) as folder:
        path = Path(folder, "demo.db")
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")  # stored in the file
        yield URL.create("sqlite", database=str(path))


def _parse(url: str) -> URL:
    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        # Without the parser's message, which may show a part of the password.
        raise BadUsage(
            "--url is not a database URL; it looks like "
            "postgresql+psycopg://user:password@host:5432/database or sqlite:///file.db "
            "(special characters of a password as %40, %2F and so on)"
        ) from None


def _engine(url: URL, connections: int, *, patient: bool) -> Engine:
    _check_driver(url)
    try:
        _refuse_unfit(create_engine(url))
        return create_engine(
            url,
            pool_size=connections,
            max_overflow=0,
            # All threads wait for the file's one lock, which is not granted in order of arrival.
            connect_args={"timeout": 120} if patient and url.get_backend_name() == "sqlite" else {},
        )
    except BadUsage:
        raise
    except ModuleNotFoundError as error:
        advice = _how_to_install(url)
        raise BadUsage(f"the driver {error.name!r} is not installed{advice}") from None
    except ImportError as error:
        raise BadUsage(f"the driver of {url.drivername} cannot be loaded: {error}") from None
    except Exception as error:  # noqa: BLE001  # whatever a dialect or a plugin raises about its options
        shown = url.set(query={}).render_as_string(hide_password=True)
        options = ", ".join(map(printable, url.query))
        raise BadUsage(
            f"--url {shown} has options ({options}) that cannot be used: {_without_secret(error, url)}"
        ) from None


def _check_driver(url: URL) -> None:
    """:raises BadUsage: SQLAlchemy has no dialect of this name, or cannot load its driver."""
    try:
        url.get_dialect()
    except NoSuchModuleError:
        raise BadUsage(
            f"SQLAlchemy knows no database or driver {url.drivername!r}"
            + ("; write postgresql+psycopg://" * (url.drivername == "postgres"))
        ) from None
    except ImportError as error:
        raise BadUsage(f"the driver of {url.drivername} cannot be loaded: {error}") from None


def _how_to_install(url: URL) -> str:
    database = url.get_backend_name()
    if database not in _DRIVERS:
        return ""
    driver, extra = _DRIVERS[database]
    command = f"pip install 'sa-doclock[{extra}]'"
    if url.get_driver_name() == driver:
        return f": {command}"
    return f": install it, or {command} and write {database}+{driver}:// in the URL"


def _refuse_unfit(engine: Engine) -> None:
    if engine.dialect.is_async:
        raise BadUsage(
            f"{engine.url.drivername} is a driver for asyncio; this command needs another one, "
            "such as postgresql+psycopg, mysql+pymysql or sqlite"
        )
    if not isinstance(engine.pool, QueuePool):
        raise BadUsage("threads cannot share an in-memory database; use sqlite:///file.db")


def _connect(engine: Engine) -> DatabaseTarget:
    # Parameters may contain secrets too.
    shown = engine.url.set(query={}).render_as_string(hide_password=True)
    try:
        with engine.connect() as connection:
            dialect = connection.dialect
            level = connection.default_isolation_level
    except Exception as error:  # noqa: BLE001  # whatever a driver raises about its URL
        raise BadUsage(f"cannot connect to {shown}: {_without_secret(error, engine.url)}") from None
    numbers = [str(part) for part in dialect.server_version_info or () if isinstance(part, int)]
    version = ".".join(numbers[:3])
    return DatabaseTarget(engine, shown, product_of(dialect), version, level or "unknown")


def _without_secret(error: Exception, url: URL) -> str:
    text = first_line(error)
    if not url.password:
        return text
    # A short password is part of many words: mask it only where it is a word.
    return re.sub(rf"(?<!\w){re.escape(str(url.password))}(?!\w)", "***", text)
