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
if _named := os.environ.get("SA_DOCLOCK_TEST_ASYNC_DRIVER"):  # a single driver, as in make versions
    DRIVERS = dict.fromkeys(DRIVERS, (_named,))


def drivers_of(column: str) -> tuple[str, ...]:
    """Return the drivers for a column of the matrix; only psycopg has a pipeline."""
    return ("psycopg",) if column == PIPELINED else DRIVERS[product(column)]


#: No lock wait ends by itself during a test: SQLite's own limit is 5 s.
PATIENT: Mapping[str, dict[str, Any]] = {"sqlite": {"connect_args": {"timeout": 60}}}

P = ParamSpec("P")


def in_a_loop(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run an asynchronous test in a new loop."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def main() -> None:
            await test(*args, **kwargs)

        asyncio.run(main())

    return run


def url_for(database: Database, driver: str) -> sa.URL:
    """Return the database's URL for this driver; skip the test if the driver is not installed."""
    if importlib.util.find_spec(driver) is None:
        required = database.name in os.environ.get("SA_DOCLOCK_TEST_REQUIRE", "")
        (pytest.fail if required else pytest.skip)(f"no driver {driver} for {database.name}")
    url = sa.make_url(database.url)
    return for_asyncio(url, driver)


def for_asyncio(url: sa.URL, driver: str) -> sa.URL:
    """Return the URL for this driver, without the other driver's parameters.

    aioodbc runs pyodbc in threads, and needs the same parameters.
    """
    query = url.query if driver == "aioodbc" else {}
    return url.set(drivername=f"{url.get_backend_name()}+{driver}", query=query)


@asynccontextmanager
async def connected(url: sa.URL, **options: Any) -> AsyncIterator[AsyncEngine]:
    """Make an engine, and dispose of it at the end."""
    pool = {"poolclass": AsyncAdaptedQueuePool}  # aiosqlite's pool since SQLAlchemy 2.0.38
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
