"""The server's view of a connection, and an account that pg8000 can use."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.util import greenlet_spawn

from tests.support.databases import PIPELINED, POOLERS, Database

_ER_CANT_CHANGE_TX_CHARACTERISTICS = 1568
_ACTIVE = "SELECT COUNT(*) FROM pg_stat_activity WHERE pid = {} AND state <> 'idle'"

IsInTransaction = Callable[[sa.Connection], bool]


def watch(database: Database, connection: sa.Connection) -> IsInTransaction:
    """Return a function that tells whether the server has a transaction open for this connection.

    A connection without a transaction is left without one.
    """
    if database.name != "postgresql":
        return _refuses_set_transaction
    with closing(connection.connection.cursor()) as cursor:  # without SQLAlchemy
        cursor.execute("SELECT pg_backend_pid()")
        number = cursor.fetchall()[0][0]
    connection.connection.rollback()

    def is_active(_: sa.Connection) -> bool:
        with database.observer().connect() as observer:
            return bool(observer.exec_driver_sql(_ACTIVE.format(number)).scalar_one())

    return is_active


def _refuses_set_transaction(connection: sa.Connection) -> bool:
    """Query MySQL or MariaDB, whose list of transactions is up to 0.1 s old."""
    driver_error: Any = connection.dialect.loaded_dbapi.Error
    try:
        with closing(connection.connection.cursor()) as cursor:
            cursor.execute("SET TRANSACTION READ WRITE")
    except driver_error as error:
        if error.args[0] != _ER_CANT_CHANGE_TX_CHARACTERISTICS:
            raise
        return True
    return False


def account_for_pg8000(database: Database) -> str:
    """Return an account with the URL's password; pg8000 needs 4,096 rounds of SCRAM or more."""
    url = sa.make_url(database.url)
    name = f"{url.username}_pg8000"
    with database.observer().connect() as connection:
        known = connection.execute(
            sa.text("SELECT 1 FROM pg_roles WHERE rolname = :name"), {"name": name}
        )
        if known.first() is None:
            connection.execute(
                sa.text(
                    "SELECT set_config(name, '4096', false) FROM pg_settings "
                    "WHERE name = 'scram_iterations'"
                )
            )
            connection.exec_driver_sql(
                f"CREATE ROLE {name} LOGIN IN ROLE {url.username} PASSWORD '{url.password}'"
            )
            connection.exec_driver_sql(f"ALTER ROLE {name} SET ROLE {url.username}")
    return name


# --------------------------------------------------------------------------------------------------
# Each test runs on each driver of each database that the library queries.

T = TypeVar("T")
Run = Callable[..., Any]

DRIVERS: Mapping[str, tuple[str, ...]] = {
    "postgresql": ("psycopg", "psycopg2", "pg8000", "asyncpg"),
    "mysql": ("pymysql", "aiomysql"),
    "mariadb": ("pymysql", "aiomysql"),
}
ASYNCHRONOUS = ("asyncpg", "aiomysql")
_FOLDER = "integration/questions/"
_ALL = tuple(dict.fromkeys(name for names in DRIVERS.values() for name in names))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize each test that uses ``driver``."""
    if "driver" in metafunc.fixturenames:
        metafunc.parametrize("driver", _ALL)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect drivers of other databases, instead of skipping them.

    pytest calls this with the tests of all folders.
    """
    if others := [item for item in items if not _fits(item)]:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if _fits(item)]


def _fits(item: pytest.Item) -> bool:
    if _FOLDER not in item.nodeid:
        return True
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    column, driver = parameters.get("database"), parameters.get("driver")
    if not isinstance(column, str) or driver not in _ALL:
        return True
    return driver in DRIVERS.get(column, ())


@pytest.fixture
def url(documents: Database, driver: str) -> sa.URL:
    """Return this driver's URL of the database with the rows of tests/support/models.py."""
    return url_of(documents, driver, sa.make_url(documents.url))


def url_of(documents: Database, driver: str, given: sa.URL) -> sa.URL:
    """Return this URL for the driver; skip the test if the driver is not installed."""
    if importlib.util.find_spec(driver) is None:
        pytest.skip(f"no driver {driver}")
    if driver == "pg8000":
        given = given.set(username=account_for_pg8000(documents))
    query = {} if driver == "aiomysql" else given.query
    return given.set(drivername=f"{given.get_backend_name()}+{driver}", query=query)


@pytest.fixture
def run(url: sa.URL) -> Run:
    """Return a function that runs another with an engine that has not connected yet."""
    return partial(run_on, url)


def run_on(url: sa.URL, play: Callable[[sa.Engine], T], **options: Any) -> T:
    """Run this with an engine that has not connected yet.

    An asynchronous engine runs in one of SQLAlchemy's greenlets.
    """
    if url.get_driver_name() in ASYNCHRONOUS:
        return asyncio.run(_run_in_loop(url, play, options))
    with _engine(url, options) as engine:
        return play(engine)


async def _run_in_loop(
    url: sa.URL, play: Callable[[sa.Engine], T], options: Mapping[str, Any]
) -> T:
    engine = create_async_engine(url, **options)
    try:
        return await greenlet_spawn(play, engine.sync_engine)
    finally:
        await engine.dispose()


@contextmanager
def _engine(url: sa.URL, options: Mapping[str, Any]) -> Iterator[sa.Engine]:
    engine = sa.create_engine(url, **options)
    try:
        yield engine
    finally:
        engine.dispose()


#: Matrix columns that use PostgreSQL's own connections again.
SAME = (PIPELINED, *POOLERS)
