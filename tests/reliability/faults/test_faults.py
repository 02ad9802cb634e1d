"""Clients continue while servers are killed, connections break, and tasks are cancelled."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection, Engine, event
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.pool import QueuePool
from sqlalchemy.util import greenlet_spawn

from lab.servers import Server, UnavailableError, start_private
from sa_doclock import AsyncLockingSession, LockingSession, LockOptions, async_run_transaction
from tests.integration.asyncio.drivers import connected, drivers_of, in_a_loop, url_for
from tests.reliability import Reliability, Soak
from tests.reliability.faults.afterwards import pool_is_wrong
from tests.reliability.faults.chaos import (
    _CANCEL,
    _END,
    PATIENCE,
    PLACES,
    POOL_TIMEOUT,
    STALL,
    STAY,
    Reset,
    Together,
    _Kills,
)
from tests.reliability.faults.clients import CLIENTS, LOCK_TIMEOUT
from tests.reliability.faults.model import (
    FOLDERS,
    Attempt,
    Folder,
    Injected,
    Log,
    change,
    current,
    look,
)
from tests.reliability.faults.proxy import Link, Proxy, proxy_to
from tests.reliability.faults.scene import INJECTIONS, UPDATES_BETWEEN, Scene
from tests.support.databases import Database

pytestmark = pytest.mark.soak


class HalfOpen:
    """Resets the client's end and keeps the server's, which goes on waiting with its locks."""

    name = "connections left half open"

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._open: list[Link] = []

    def inject(self, chance: random.Random) -> int:
        self.heal()

        def leave_open(link: Link) -> None:
            link.flows.clear()
            link.reset(link.client)
            self._open.append(link)

        return int(self._proxy.harm(leave_open, chance) is not None)

    def heal(self) -> int:
        """Drop the connections at the end, like a router that counts them."""
        while self._open:
            self._proxy.run_soon(self._open.pop().release)
        return 0


class Stalled:
    """Holds all data for a while, then passes it on."""

    name = "connections stalled"

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._waiting = threading.Event()

    def inject(self, chance: random.Random) -> int:
        link = self._proxy.harm(lambda link: link.flows.clear(), chance)
        self._waiting.wait(STALL)
        if link is not None:
            self._proxy.run_soon(link.flows.set)
        return int(link is not None)

    def heal(self) -> int:
        return 0


class CutInMidPacket:
    """Passes on half of the next packet, and ends the connection."""

    name = "connections cut in mid-packet"

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._armed: list[Link] = []

    def inject(self, chance: random.Random) -> int:
        direction = chance.choice(("there", "back"))
        arm: Callable[[Link], object] = lambda link: setattr(link, "cut", direction)  # noqa: E731
        link = self._proxy.harm(arm, chance)
        if link is not None:
            self._armed.append(link)
        return self._happened()

    def heal(self) -> int:
        return self._happened()

    def _happened(self) -> int:
        done = [link for link in self._armed if link.was_cut]
        self._armed = [link for link in self._armed if link not in done]
        return len(done)


class FullPool:
    name = "pool filled by others"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        assert isinstance(engine.pool, QueuePool)
        self._pool = engine.pool
        self._open = threading.Event()
        self._open.set()

    def before(self) -> None:
        """Let the crowd in first: a client calls this before each update.

        The pool does not: a client that returns a connection is the first to get it again.
        """
        self._open.wait(PATIENCE)

    def inject(self, chance: random.Random) -> int:
        self._open.clear()
        wanted, taken = self._pool.size(), list[Connection]()
        end = time.monotonic() + PATIENCE
        while len(taken) < wanted and time.monotonic() < end:
            with suppress(sa.exc.TimeoutError):
                taken.append(self._engine.connect())
        self._open.set()
        threading.Event().wait(STAY)
        for connection in taken:
            connection.close()
        return int(len(taken) == wanted)

    def heal(self) -> int:
        return 0


class Interrupts:
    name = "exceptions like Ctrl-C in the block"

    def __init__(self, engine: Engine) -> None:
        self._lock = threading.Lock()
        self._place: str | None = None
        self._done = 0
        for place in PLACES[:-1]:
            event.listen(engine, place, self._raiser(place))

    def pause(self) -> None:
        """Raise the exception, if one is due, between a client's changes and their commit."""
        self._raise_at("in the block")

    def inject(self, chance: random.Random) -> int:
        with self._lock:
            self._place = chance.choice(PLACES)
        return self._counted()

    def heal(self) -> int:
        with self._lock:
            self._place = None
        return self._counted()

    def _counted(self) -> int:
        with self._lock:
            done, self._done = self._done, 0
        return done

    def _raiser(self, place: str) -> Callable[..., None]:
        def listen(*_: object) -> None:
            self._raise_at(place)

        return listen

    def _raise_at(self, place: str) -> None:
        with self._lock:
            if self._place != place:
                return
            self._place = None
            self._done += 1
        raise Injected(place)


class Terminated(_Kills):
    name = "connections terminated by the server"

    def __init__(self, engine: Engine, direct: Engine, product: str) -> None:
        super().__init__(engine, direct, _END[product])


class Cancelled(_Kills):
    name = "statements cancelled by the server"

    def __init__(self, engine: Engine, direct: Engine, product: str) -> None:
        super().__init__(engine, direct, _CANCEL[product])


# --------------------------------------------------------------------------------------------------
# Asyncio tasks that change folders one after the other, and are cancelled at any moment.

FOR_UPDATE = LockOptions.ForUpdate

#: The cancellation happens within this many seconds, the duration of an update.
SOON = 0.02


@dataclass
class AsyncDesk:
    """The objects that a client works with."""

    factory: async_sessionmaker[AsyncLockingSession]
    log: Log
    chance: random.Random

    def two_folders(self) -> list[int]:
        return self.chance.sample(FOLDERS, 2)

    async def edit(self, session: AsyncLockingSession, attempt: Attempt) -> None:
        """Read two folders whole under their locks, and change both."""
        folders = await session.get_documents(Folder, self.two_folders(), FOR_UPDATE)
        look(self.log, attempt, folders)

        def apply(_: object) -> None:
            locking = session.sync_session
            assert isinstance(locking, LockingSession)
            change(locking, attempt, folders, self.chance)

        await session.run_sync(apply)


async def by_save_changes(desk: AsyncDesk) -> None:
    attempt = desk.log.begin(desk.log.new_update())
    async with desk.factory() as session:
        await desk.edit(session, attempt)
        await session.flush()
        await session.save_changes()
        desk.log.acknowledge(attempt)


async def by_locked(desk: AsyncDesk) -> None:
    attempt = desk.log.begin(desk.log.new_update())
    async with desk.factory() as session:
        async with session.locked(Folder, desk.chance.choice(FOLDERS)) as folder:
            await session.refresh(folder, ["sheets"])
            look(desk.log, attempt, [folder])
            await session.run_sync(
                lambda locking: change(locking, attempt, [folder], desk.chance)  # type: ignore[arg-type]
            )
        desk.log.acknowledge(attempt)


async def by_run_transaction(desk: AsyncDesk) -> None:
    update, attempts = desk.log.new_update(), list[Attempt]()

    async def transfer(session: AsyncLockingSession) -> None:
        for earlier in attempts:
            desk.log.give_up(earlier)
        attempts.append(desk.log.begin(update))
        await desk.edit(session, attempts[-1])

    await async_run_transaction(desk.factory, transfer, backoff=0.01)
    desk.log.acknowledge(attempts[-1])


async def read(desk: AsyncDesk) -> None:
    attempt = desk.log.begin(update=0)
    lock = desk.chance.choice((LockOptions.SharedRead, LockOptions.SnapshotRead))
    async with desk.factory() as session:
        look(desk.log, attempt, await session.get_documents(Folder, desk.two_folders(), lock))
        await session.release_locks()
        desk.log.acknowledge(attempt)


WAYS: tuple[Callable[[AsyncDesk], Awaitable[None]], ...] = (
    by_save_changes,
    by_locked,
    by_run_transaction,
    read,
)


class AsyncClients:
    """The clients of one run, all in the running loop."""

    def __init__(self, engine: AsyncEngine, log: Log, seed: int) -> None:
        self._log = log
        self._stopped = False
        self._ended = asyncio.Semaphore(0)
        self._running: dict[int, asyncio.Task[None]] = {}
        factory = async_sessionmaker(engine, class_=AsyncLockingSession, lock_timeout=LOCK_TIMEOUT)
        self._clients = [
            asyncio.create_task(
                self._work(number, AsyncDesk(factory, log, random.Random(f"{seed} {number}")))
            )
            for number in range(CLIENTS)
        ]

    async def cancel_one(self, chance: random.Random, after: int) -> int:
        """Wait for this number of updates; then cancel one client's update, at any moment."""
        for _ in range(after):
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ended.acquire(), 2)
        await asyncio.sleep(chance.random() * SOON)
        task = chance.choice(list(self._running.values()))
        return int(task.cancel())

    async def stop(self) -> None:
        """Wait until each finishes its current update."""
        self._stopped = True
        await asyncio.wait_for(asyncio.gather(*self._clients), 60)

    async def _work(self, number: int, desk: AsyncDesk) -> None:
        while not self._stopped:
            self._running[number] = asyncio.create_task(self._take(desk))
            await asyncio.wait([self._running[number]])

    async def _take(self, desk: AsyncDesk) -> None:
        current.set(None)
        try:
            await desk.chance.choice(WAYS)(desk)
        except BaseException as error:  # noqa: BLE001  # nobody awaits it
            self._log.reached_client(error, asyncio.CancelledError)
            attempt = current.get()
            if attempt is not None:
                self._log.give_up(attempt)
        finally:
            self._log.update_ended()
            self._ended.release()


# --------------------------------------------------------------------------------------------------
# Clients continue while servers are killed, connections break, and tasks are cancelled.

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
# The server ends connections and statements at any moment.


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_connections_are_terminated(scene: Scene, database: Database) -> None:
    engine = scene.engine()
    scene.survives(engine, Terminated(engine, scene.direct, database.name), share=0.1)


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_statements_are_cancelled(scene: Scene, database: Database) -> None:
    engine = scene.engine()
    scene.survives(engine, Cancelled(engine, scene.direct, database.name), share=0.1)


# --------------------------------------------------------------------------------------------------
# Faults inside the process, independent of any server.


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

# Not aiosqlite: cancelling a task while its statement runs in aiosqlite's thread may block
# SQLAlchemy's shielded close of the connection on that thread, and asyncio.run() with it.


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
# The server itself is killed in mid-run, amid every other kind of fault.


@pytest.fixture
def server(database: Database) -> Iterator[Server]:
    """Start a private server of the same kind."""
    try:
        server = start_private(database.name)
    except UnavailableError as exc:
        pytest.skip(f"no private {database.name}: {exc}")
    yield server
    server.stop()


def write_through(server: Server) -> None:
    """Write each commit to disk before it returns; PostgreSQL does so by default."""
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
