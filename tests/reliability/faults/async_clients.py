"""Asyncio tasks that change folders one after the other, and are cancelled at any moment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from sa_doclock import AsyncLockingSession, LockingSession, LockOptions, async_run_transaction
from tests.reliability.faults.changing import change, look
from tests.reliability.faults.clients import CLIENTS, LOCK_TIMEOUT
from tests.reliability.faults.log import Attempt, Log, current
from tests.reliability.faults.model import FOLDERS, Folder

FOR_UPDATE = LockOptions.ForUpdate

#: Seconds within which the moment of a cancellation is chosen: what an update takes.
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
        """Let so many updates end; then cancel what one client is about, at any moment."""
        for _ in range(after):
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ended.acquire(), 2)
        await asyncio.sleep(chance.random() * SOON)
        task = chance.choice(list(self._running.values()))
        return int(task.cancel())

    async def stop(self) -> None:
        """Wait until each has ended what it is about."""
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
