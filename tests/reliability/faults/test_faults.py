"""Clients go on while servers are killed, connections break, and tasks are cancelled."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.util import greenlet_spawn

from lab.servers import Server, UnavailableError, start_private
from tests.integration.asyncio.drivers import connected, drivers_of, in_a_loop, url_for
from tests.reliability import Reliability, Soak
from tests.reliability.faults.async_clients import AsyncClients
from tests.reliability.faults.clients import CLIENTS
from tests.reliability.faults.crowd import POOL_TIMEOUT, FullPool
from tests.reliability.faults.interrupts import Interrupts
from tests.reliability.faults.network import CutInMidPacket, HalfOpen, Reset, Stalled
from tests.reliability.faults.pools import pool_is_wrong
from tests.reliability.faults.proxy import Proxy, proxy_to
from tests.reliability.faults.scene import INJECTIONS, UPDATES_BETWEEN, Scene
from tests.reliability.faults.terminated import Cancelled, Terminated
from tests.reliability.faults.together import Together
from tests.support.databases import Database

pytestmark = pytest.mark.soak


# --------------------------------------------------------------------------------------------------
# Connections break, stall, or end in the middle of a packet.


@pytest.fixture
def proxy(scene: Scene) -> Iterator[Proxy]:
    with proxy_to(scene.url) as proxy:
        yield proxy


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.slow
@pytest.mark.parametrize("kind", [Reset, HalfOpen, Stalled, CutInMidPacket])
def test_a_network_fails(
    scene: Scene,
    proxy: Proxy,
    kind: type[Reset | HalfOpen | Stalled | CutInMidPacket],
) -> None:
    scene.survives(scene.engine(proxy.url), kind(proxy), share=0.08)


# --------------------------------------------------------------------------------------------------
# Connections and statements are ended by the server, at any moment.


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_connections_are_terminated(scene: Scene, database: Database) -> None:
    engine = scene.engine()
    scene.survives(engine, Terminated(engine, scene.direct, database.name), share=0.1)


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_statements_are_cancelled(scene: Scene, database: Database) -> None:
    engine = scene.engine()
    scene.survives(engine, Cancelled(engine, scene.direct, database.name), share=0.1)


# --------------------------------------------------------------------------------------------------
# Faults within the process: no server has to do with them.


@pytest.mark.not_databases("mssql", "sqlite-journal")
@pytest.mark.slow
def test_the_pool_is_full(scene: Scene) -> None:
    engine = scene.engine(pool_timeout=POOL_TIMEOUT)
    crowd = FullPool(engine)
    scene.survives(engine, crowd, share=0.05, before=crowd.before)


@pytest.mark.not_databases("mssql", "sqlite-journal")
@pytest.mark.slow
def test_exceptions_nobody_expects(scene: Scene) -> None:
    engine = scene.engine()
    interrupts = Interrupts(engine)
    pause = interrupts.pause
    scene.survives(engine, interrupts, share=0.1, pause=pause, injections=2 * INJECTIONS)


# --------------------------------------------------------------------------------------------------
# Asyncio tasks are cancelled at any moment.

# Not aiosqlite: a task that is cancelled while its statement runs in aiosqlite's thread may leave
# SQLAlchemy's shielded close of the connection waiting for that thread, and asyncio.run() with it.


@pytest.mark.databases("postgresql", "mysql", "mariadb")
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


# --------------------------------------------------------------------------------------------------
# The server itself is killed in the middle, with everything else that goes wrong around it.


@pytest.fixture
def server(database: Database) -> Iterator[Server]:
    """Start a server that nobody else uses, of the same kind."""
    try:
        server = start_private(database.name)
    except UnavailableError as exc:
        pytest.skip(f"no private {database.name}: {exc}")
    yield server
    server.stop()


def write_through(server: Server) -> None:
    """Have each commit on disk before it returns; PostgreSQL does so by default."""
    engine = sa.create_engine(server.url, poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            assert connection.exec_driver_sql("SHOW fsync").scalar() == "on"
        else:
            connection.exec_driver_sql("SET GLOBAL innodb_flush_log_at_trx_commit = 1")


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.slow
def test_a_server_is_killed_while_everything_fails(
    server: Server, database: Database, soak: Soak, reliability: Reliability
) -> None:
    write_through(server)
    scene = Scene(server.url, database.column, soak, reliability)
    with proxy_to(server.url) as proxy:
        engine = scene.engine(proxy.url, pool_timeout=POOL_TIMEOUT)
        interrupts = Interrupts(engine)
        terminated = Terminated(engine, scene.direct, database.name)

        def kill_the_server() -> None:
            server.crash()
            terminated.restarted()

        kinds = (
            terminated,
            *(kind(proxy) for kind in (Reset, HalfOpen, Stalled, CutInMidPacket)),
            interrupts,
        )
        scene.survives(
            engine,
            Together(kinds),
            share=0.4,
            pause=interrupts.pause,
            injections=2 * INJECTIONS,
            in_the_middle=kill_the_server,
            was_killed=True,
        )
        scene.close()
