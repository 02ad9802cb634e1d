"""Asyncio tasks are cancelled at any moment."""

from __future__ import annotations

import random
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.util import greenlet_spawn

from tests.integration.asyncio.drivers import connected, drivers_of, in_a_loop, url_for
from tests.reliability.faults.async_clients import AsyncClients
from tests.reliability.faults.clients import CLIENTS
from tests.reliability.faults.pools import pool_is_wrong
from tests.reliability.faults.scene import INJECTIONS, UPDATES_BETWEEN, Scene
from tests.support.databases import Database

# Not aiosqlite: a task that is cancelled while its statement runs in aiosqlite's thread may leave
# SQLAlchemy's shielded close of the connection waiting for that thread, and asyncio.run() with it.
pytestmark = [pytest.mark.soak, pytest.mark.databases("postgresql", "mysql", "mariadb")]


@pytest.mark.slow
@in_a_loop
async def test_tasks_are_cancelled(scene: Scene, database: Database) -> None:
    for driver in drivers_of(database.column):
        await survive_cancellations(scene, url_for(database, driver), driver)


async def survive_cancellations(scene: Scene, url: sa.URL, driver: str) -> None:
    name, log = f"asyncio tasks cancelled, {driver}", scene.empty_log()
    chance = random.Random(name)
    pool: dict[str, Any] = {"pool_size": CLIENTS, "max_overflow": 0, "connect_args": {}}
    async with connected(url, **pool) as engine:
        with scene.listening(log, engine.sync_engine):
            clients = AsyncClients(engine, log, seed=1)
            for done in scene.soak.rounds(short=2 * INJECTIONS, share=0.05):
                scene.row(name).injected += await clients.cancel_one(chance, UPDATES_BETWEEN)
                scene.tell(name, done, log)
            await clients.stop()
        wrong = await greenlet_spawn(pool_is_wrong, engine.sync_engine, scene.direct)
    scene.verify(name, log, wrong)
