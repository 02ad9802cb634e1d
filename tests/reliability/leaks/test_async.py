"""So it is under asyncio, with each driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from tests.integration.asyncio.drivers import url_for
from tests.reliability import Reliability, Soak
from tests.reliability.leaks.async_ways import (
    ASYNC_FAILURES,
    ASYNC_WAYS,
    RARE_ASYNC_FAILURES,
    AsyncScene,
)
from tests.reliability.leaks.cycles import run_all
from tests.reliability.leaks.scene import CONNECT_ARGS, Scene
from tests.support.databases import PIPELINED

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(7200),
    pytest.mark.not_databases("sqlite-journal"),
]
WAYS = (*ASYNC_WAYS, *ASYNC_FAILURES)


@pytest.fixture
def async_scene(scene: Scene, driver: str) -> Iterator[AsyncScene]:
    """Open the same documents to asyncio."""
    if scene.database.column == PIPELINED and driver != "psycopg":
        pytest.skip(f"pipeline=True is not for {driver}")
    connect_args = CONNECT_ARGS["sqlite"] if driver == "aiosqlite" else {}
    made = create_async_engine(
        url_for(scene.database, driver),
        connect_args=connect_args,
        # As many connections as a way needs, whichever a cancelled waiter has given up: else the next ways
        # take turns at those that are there, and asyncpg keeps the prepared statements of each.
        pool_use_lifo=True,
    )
    engine = made.execution_options(compiled_cache=scene.compiled)
    loop = asyncio.new_event_loop()
    yield AsyncScene(scene.database, engine.sync_engine, scene.compiled, 0, engine, loop)
    loop.run_until_complete(made.dispose())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


@pytest.fixture
def cycles_leave_nothing(
    async_scene: AsyncScene, soak: Soak, reliability: Reliability
) -> Callable[[], None]:
    """Return the test."""

    def run() -> None:
        row = reliability.row("locks taken and let go, asyncio", async_scene.database.column)
        run_all(async_scene, soak, row, RARE_ASYNC_FAILURES, soak.times(short=12, long=300))
        run_all(async_scene, soak, row, WAYS, soak.times(short=12, long=1_000) * len(WAYS))

    return run


@pytest.mark.slow
@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_on_postgresql(cycles_leave_nothing: Callable[[], None]) -> None:
    cycles_leave_nothing()


@pytest.mark.slow
@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("driver", ["aiosqlite"])
def test_on_sqlite(cycles_leave_nothing: Callable[[], None]) -> None:
    cycles_leave_nothing()
