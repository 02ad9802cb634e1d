"""The asynchronous drivers of each database of the matrix."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, ParamSpec

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool

from sa_doclock import AsyncLockingSession
from tests.support.databases import PIPELINED, Database, product

DRIVERS: Mapping[str, tuple[str, ...]] = {
    "postgresql": ("psycopg", "asyncpg"),
    "mysql": ("aiomysql",),
    "mariadb": ("aiomysql",),
    "mssql": ("aioodbc",),
    "sqlite": ("aiosqlite",),
}
if _named := os.environ.get("SA_DOCLOCK_TEST_ASYNC_DRIVER"):  # one alone, as make versions has it
    DRIVERS = dict.fromkeys(DRIVERS, (_named,))


def drivers_of(column: str) -> tuple[str, ...]:
    """Return those for a column of the matrix: psycopg alone has a pipeline."""
    return ("psycopg",) if column == PIPELINED else DRIVERS[product(column)]


#: No wait for a lock ends by itself while a test looks: SQLite's own limit is 5 s.
PATIENT: Mapping[str, dict[str, Any]] = {"sqlite": {"connect_args": {"timeout": 60}}}

P = ParamSpec("P")
Opened = Callable[..., Any]


def in_a_loop(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run an asynchronous test to its end, in its own loop."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def main() -> None:
            await test(*args, **kwargs)

        asyncio.run(main())

    return run


def url_for(database: Database, driver: str) -> sa.URL:
    """Return the database's URL, for this driver; skip the test if the driver is not there."""
    if importlib.util.find_spec(driver) is None:
        required = database.name in os.environ.get("SA_DOCLOCK_TEST_REQUIRE", "")
        (pytest.fail if required else pytest.skip)(f"no driver {driver} for {database.name}")
    url = sa.make_url(database.url)
    return for_asyncio(url, driver)


def for_asyncio(url: sa.URL, driver: str) -> sa.URL:
    """Return the URL for this driver, without the parameters of the other.

    aioodbc is pyodbc behind threads, and needs the same.
    """
    query = url.query if driver == "aioodbc" else {}
    return url.set(drivername=f"{url.get_backend_name()}+{driver}", query=query)


@asynccontextmanager
async def connected(url: sa.URL, **options: Any) -> AsyncIterator[AsyncEngine]:
    """Make an engine that is disposed in the end."""
    pool = {"poolclass": AsyncAdaptedQueuePool}  # that of aiosqlite since SQLAlchemy 2.0.38
    patient = PATIENT.get(url.get_backend_name(), {})
    engine = create_async_engine(url, **{**pool, **patient, **options})
    try:
        yield engine
    finally:
        await engine.dispose()


@asynccontextmanager
async def opened(url: sa.URL, **options: Any) -> AsyncIterator[AsyncLockingSession]:
    """Open a session on a separate engine."""
    async with connected(url, **options) as engine, AsyncLockingSession(engine) as session:
        yield session
