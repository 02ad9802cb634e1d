"""Functions that the tests of async_claim_each() share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.pool import QueuePool

from sa_doclock import AsyncLockingSession
from tests.integration.asyncio.drivers import connected, drivers_of, url_for
from tests.support.databases import Database

Factory = async_sessionmaker[AsyncLockingSession]


@asynccontextmanager
async def factory(database: Database) -> AsyncIterator[Factory]:
    """Make sessions of the first driver; in the end all of its connections are in the pool."""
    arguments = database.connect_args  # of psycopg, which is the first driver
    options = {"connect_args": arguments} if arguments else {}
    async with connected(url_for(database, drivers_of(database.column)[0]), **options) as engine:
        yield async_sessionmaker(engine, class_=AsyncLockingSession)
        pool = engine.sync_engine.pool
        assert isinstance(pool, QueuePool)
        assert pool.checkedout() == 0


async def next_of(claims: Any) -> Any:
    """Return the next claim; anext() needs an iterator that is one by type."""
    return await claims.__anext__()
