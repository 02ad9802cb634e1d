"""Tasks at the gate wait without a connection, while their loop does other work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import sessionmaker

from sa_doclock import (
    AsyncLockingSession,
    DocumentGate,
    LockingSession,
    LockMisuse,
    LockNotAvailable,
    LockOptions,
)
from sa_doclock.features import batch as priority
from sa_doclock.features.gate import queues_of
from sa_doclock.process_waits import pause
from tests.integration.asyncio.drivers import DRIVERS, connected, in_a_loop, url_for
from tests.integration.batch.batches import seeing_tries
from tests.integration.gate.queueing import in_use as in_use_batch
from tests.integration.gate.queueing import until_queued, wait_until_queued
from tests.integration.locking.steps import locks, roll_back
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Customer, Order

ForUpdate = LockOptions.ForUpdate
Session = AsyncLockingSession
Makes = async_sessionmaker[Session]


@asynccontextmanager
async def opened(
    database: Database, gate: DocumentGate
) -> AsyncIterator[tuple[AsyncEngine, Makes]]:
    """Return a factory on the database's first driver, with a separate pool."""
    url = url_for(database, DRIVERS[database.name][0])
    async with connected(url, pool_size=20, max_overflow=0) as engine:
        yield engine, async_sessionmaker(engine, class_=AsyncLockingSession, gate=gate)


async def add_ten(makes: Makes) -> int:
    async with makes() as session, session.locked(Order, 1) as order:
        order.total += 10
        return order.total


def in_use(engine: AsyncEngine) -> int:
    found: int = engine.pool.checkedout()  # type: ignore[attr-defined]
    return found


@in_a_loop
async def test_nineteen_waiters_have_no_connection(documents: Database, gate: DocumentGate) -> None:
    async with opened(documents, gate) as (engine, makes), makes() as holder:
        await holder.get_entity(Order, 1, ForUpdate)
        tasks = [asyncio.ensure_future(add_ten(makes)) for _ in range(19)]
        await until_queued(gate, 19)
        assert in_use(engine) == 1
        async with makes() as unrelated:
            await asyncio.create_task(read_customer(unrelated))
        await holder.rollback()
        assert await asyncio.gather(*tasks) == [40 + 10 * number for number in range(19)]
        assert queues_of(gate).documents == {}


async def read_customer(session: Session) -> None:
    assert (await session.get_one(Customer, 1)).name == "Ann"


@pytest.mark.not_databases("sqlite")
@in_a_loop
async def test_by_default_they_have_one_in_all_and_another_document_is_served(
    documents: Database,
) -> None:
    gate = DocumentGate()
    async with opened(documents, gate) as (engine, makes), makes() as holder:
        await holder.get_entity(Order, 1, ForUpdate)
        tasks = [asyncio.ensure_future(add_ten(makes)) for _ in range(19)]
        await until_queued(gate, 18)
        assert in_use(engine) == 2
        assert await asyncio.create_task(lock_the_other(makes)) == 5
        assert gate.waiting == 18
        await holder.rollback()
        assert await asyncio.gather(*tasks) == [40 + 10 * number for number in range(19)]


async def lock_the_other(makes: Makes) -> int:
    async with makes() as session, session.locked(Order, 2) as order:
        return order.total


@in_a_loop
async def test_who_is_cancelled_leaves_the_line(documents: Database, gate: DocumentGate) -> None:
    async with opened(documents, gate) as (engine, makes), makes() as holder:
        await holder.get_entity(Order, 1, ForUpdate)
        tasks = []
        for number in range(3):
            tasks.append(asyncio.ensure_future(add_ten(makes)))
            await until_queued(gate, number + 1)
        tasks[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]
        assert gate.waiting == 2
        await holder.rollback()
        assert [await tasks[0], await tasks[2]] == [40, 50]
        assert (in_use(engine), queues_of(gate).documents) == (0, {})


@in_a_loop
async def test_who_is_cancelled_when_its_turn_has_come_passes_it_on(
    documents: Database, gate: DocumentGate
) -> None:
    async with opened(documents, gate) as (_, makes), makes() as holder:
        await holder.get_entity(Order, 1, ForUpdate)
        first = asyncio.ensure_future(add_ten(makes))
        await until_queued(gate, 1)
        second = asyncio.ensure_future(add_ten(makes))
        await until_queued(gate, 2)
        (line,) = queues_of(gate).documents.values()
        place = next(entry for entry in line if not entry.admitted)
        await holder.rollback()
        assert place.admitted
        assert not first.done()
        first.cancel()  # it has its turn, and does not know it yet
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await second == 40
        assert queues_of(gate).documents == {}


@in_a_loop
async def test_a_timeout_is_reported(documents: Database, gate: DocumentGate) -> None:
    async with opened(documents, gate) as (_, makes), makes() as holder:
        await holder.get_entity(Order, 1, ForUpdate)
        with pytest.raises(LockNotAvailable, match=r"Order 1 FOR UPDATE on .* within 0\.05 s"):
            await asyncio.create_task(limited(makes))
        assert queues_of(gate).documents.keys()
        await holder.rollback()
        assert queues_of(gate).documents == {}


async def limited(makes: Makes) -> None:
    async with makes() as session:
        await session.get_entity(Order, 1, ForUpdate, lock_timeout=0.05)


@in_a_loop
async def test_a_task_that_holds_a_lock_is_refused_a_second_session(
    documents: Database, gate: DocumentGate
) -> None:
    async with opened(documents, gate) as (engine, makes), makes() as first, makes() as second:
        await first.get_entity(Order, 1, ForUpdate)
        with pytest.raises(LockMisuse, match="this task or thread holds Order 1"):
            await second.get(Customer, 1)
        assert in_use(engine) == 1
        await asyncio.create_task(read_customer(second))  # another task may
        await second.rollback()
        await first.rollback()
        await read_customer(second)


@in_a_loop
async def test_a_batch_pauses_without_blocking_the_loop(
    documents: Database, gate: DocumentGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(documents, gate) as (engine, makes), makes() as holder:
        await holder.get_entity(Order, 1, ForUpdate)
        batches = async_sessionmaker(
            engine, class_=AsyncLockingSession, gate=gate, priority="batch"
        )
        paused = asyncio.Event()

        def look(seconds: float, *, under_asyncio: bool) -> None:
            paused.set()
            assert under_asyncio  # though it has no connection that would show this
            pause(seconds, under_asyncio=under_asyncio)

        monkeypatch.setattr(priority, "pause", look)
        batch = asyncio.ensure_future(add_ten(batches))
        await asyncio.wait_for(paused.wait(), 30)
        assert not batch.done()
        assert in_use(engine) == 1
        await holder.rollback()
        assert await batch == 40


# --------------------------------------------------------------------------------------------------
# A batch does not queue at the gate, and tries a document only if no one else wants it.

Player = Actor[LockingSession]
BatchMakes = Callable[[], LockingSession]


@pytest.fixture
def makes_batches(engine: sa.Engine, gate: DocumentGate) -> BatchMakes:
    return sessionmaker(engine, class_=LockingSession, gate=gate, priority="batch")


def test_it_takes_what_is_free(gate: DocumentGate, makes_batches: BatchMakes) -> None:
    with makes_batches() as batch:
        assert locks(Order, 1)(batch).total == 30
        assert queues_of(gate).documents == {}


def test_it_does_not_even_try_while_another_has_it(
    gate: DocumentGate,
    engine: sa.Engine,
    makes_batches: BatchMakes,
    alice: Player,
    dave: Callable[..., Player],
) -> None:
    batch = dave(makes_batches)
    alice.does(locks(Order, 1))
    with seeing_tries(engine) as tries:
        with pytest.raises(LockNotAvailable, match=r"not granted within 0\.3 s"):
            batch.does(locks(Order, 1, lock_timeout=0.3))
        assert tries.count == 0
    assert in_use_batch(engine) == 1
    assert gate.waiting == 0


def test_it_comes_after_all_who_wait(
    gate: DocumentGate,
    makes_batches: BatchMakes,
    alice: Player,
    bob: Player,
    dave: Callable[..., Player],
) -> None:
    alice.does(locks(Order, 1))
    queued = bob.starts(locks(Order, 1))
    wait_until_queued(gate, queued)
    batch = dave(makes_batches).starts(locks(Order, 1))
    alice.does(roll_back)
    queued.result()
    assert not batch.done()
    bob.does(roll_back)
    assert batch.result().total == 30


@pytest.mark.not_databases("sqlite", "mssql")  # there readers do not wait
def test_it_reads_beside_readers(
    alice: Player, makes_batches: BatchMakes, dave: Callable[..., Player]
) -> None:
    alice.does(locks(Order, 1, LockOptions.SharedRead))
    assert dave(makes_batches).does(locks(Order, 1, LockOptions.SharedRead)).total == 30


def test_who_comes_behind_it_waits_for_the_database(
    gate: DocumentGate,
    engine: sa.Engine,
    makes_batches: BatchMakes,
    alice: Player,
    dave: Callable[..., Player],
) -> None:
    batch = dave(makes_batches)
    batch.does(locks(Order, 1))
    with pytest.raises(LockNotAvailable):
        alice.does(locks(Order, 1, lock_timeout=0.05))
    batch.does(roll_back)
    assert alice.does(locks(Order, 1)).total == 30
    assert in_use_batch(engine) == 1
    assert gate.waiting == 0
