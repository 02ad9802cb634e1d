"""A batch session tries for as long as its lock_timeout, or for a minute."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

import sa_doclock.features.batch
from sa_doclock import (
    AsyncLockingSession,
    LockingSession,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    with_lock,
)
from sa_doclock.features import batch as batches
from sa_doclock.options import BATCH_WAIT
from sa_doclock.pool import ExecuteStatement
from tests.integration.asyncio.drivers import connected, drivers_of, in_a_loop, url_for
from tests.integration.batch.batches import seeing_tries
from tests.integration.locking.steps import finds_held, recorded
from tests.integration.timeouts.ways import WAYS, hold
from tests.support.databases import Database
from tests.support.models import Order, Voucher

ForUpdate, NoWait = LockOptions.ForUpdate, LockOptions.NoWait
Session = LockingSession


@pytest.fixture
def make_batch(engine: sa.Engine) -> Callable[..., Session]:
    def make(**options: Any) -> Session:
        return Session(engine, priority="batch", **options)

    return make


class Clock:
    """A clock that advances only during a pause."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = time.monotonic()
        self.pauses: list[float] = []
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(sa_doclock.features.batch, "pause", self._pause)

    def _pause(self, seconds: float, *, under_asyncio: bool) -> None:
        assert not under_asyncio
        self.pauses.append(seconds)
        self.now += seconds


def test_it_gives_up_when_its_lock_timeout_is_over(
    make_batch: Callable[..., Session], other: Session
) -> None:
    hold(other)
    with make_batch(lock_timeout=0.05) as session:
        for name, way in WAYS.items():
            with pytest.raises(LockNotAvailable, match=r"not granted within 0\.05 s") as caught:
                way(session)
            # Excludes the time to get the connection, which is not a wait for a lock.
            assert caught.value.waited, name
            assert caught.value.lock is ForUpdate
            assert not session.in_transaction()
    with make_batch() as session, pytest.raises(LockNotAvailable, match=r"within 0\.03 s"):
        session.get_entity(Order, 1, ForUpdate, lock_timeout=0.03)


def test_without_one_it_tries_for_a_minute(
    make_batch: Callable[..., Session], other: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert BATCH_WAIT == 60
    hold(other)
    clock = Clock(monkeypatch)
    began = clock.now
    with make_batch() as session, pytest.raises(LockNotAvailable, match="not granted within 60 s"):
        session.get_entity(Order, 1, ForUpdate)
    assert BATCH_WAIT <= clock.now - began < BATCH_WAIT + 1e-6  # not a moment longer
    assert len(clock.pauses) > 100
    assert max(clock.pauses) <= 0.5
    assert len({round(pause, 6) for pause in clock.pauses}) > len(clock.pauses) / 2  # jitter


def test_it_is_granted_at_once_what_is_free(
    make_batch: Callable[..., Session], engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    with make_batch() as session, seeing_tries(engine) as tries:
        assert session.get_one_entity(Order, 1, ForUpdate).total == 30
        assert tries.count == 1
    assert clock.pauses == []


def test_it_tries_again_until_it_is_granted(
    make_batch: Callable[..., Session],
    engine: sa.Engine,
    other: Session,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hold(other)
    clock = Clock(monkeypatch)
    real_pause = clock._pause

    def pause(seconds: float, *, under_asyncio: bool) -> None:
        real_pause(seconds, under_asyncio=under_asyncio)
        if len(clock.pauses) == 5:
            other.rollback()

    monkeypatch.setattr(sa_doclock.features.batch, "pause", pause)
    with make_batch() as session, seeing_tries(engine) as tries:
        assert session.get_one_entity(Order, 1, ForUpdate).total == 30
        assert tries.count == 6
        assert finds_held()(other)
        session.rollback()


def test_nowait_is_one_try_as_ever(
    make_batch: Callable[..., Session], other: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(other)
    clock = Clock(monkeypatch)
    with make_batch() as session:
        for how in ({"lock": ForUpdate | NoWait}, {"lock": ForUpdate, "lock_timeout": 0}):
            with pytest.raises(LockNotAvailable, match="held by another transaction"):
                session.get_entity(Order, 1, **how)
    assert clock.pauses == []


@pytest.mark.not_databases("sqlite")
def test_reads_that_never_wait_are_the_same(
    make_batch: Callable[..., Session], engine: sa.Engine, session: Session, other: Session
) -> None:
    WAYS["get_entity"](session)
    session.rollback()
    hold(other)
    said = []
    for actor in (session, make_batch()):
        with recorded(engine) as statements, actor:
            for lock in (LockOptions.None_, LockOptions.SnapshotRead):
                assert actor.get_one_entity(Order, 1, lock).total == 30
                actor.rollback()
            skipped = actor.entity_set(Order, ForUpdate | LockOptions.SkipLocked)
            assert [order.id for order in actor.scalars(skipped)] == [2]
        # SQL Server gets the deadlock priority before the first statement that can deadlock.
        said.append([one for one in statements if "DEADLOCK_PRIORITY" not in one.upper()])
    assert said[0] == said[1]


@pytest.mark.not_databases("sqlite")  # its named lock is the file's lock
def test_a_name_needs_no_savepoint(make_batch: Callable[..., Session], engine: sa.Engine) -> None:
    sent: list[str] = []

    def note(connection: sa.Connection, name: str) -> None:
        sent.append(f"{connection.dialect.name} {name}")

    sa.event.listen(engine, "savepoint", note)
    with make_batch() as batch:
        batch.lock_key("a name")
        assert sent == []
        batch.get_one_entity(Order, 1, ForUpdate)
        assert len(sent) == 1
        batch.rollback()


@pytest.mark.parametrize("priority", ["Batch", "low", "", None, 1])
def test_there_are_two_priorities(priority: Any, engine: sa.Engine) -> None:
    with pytest.raises(ValueError, match='priority must be "interactive" or "batch"'):
        Session(engine, priority=priority)


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_a_table_that_somebody_alters_is_not_waited_for_longer(
    make_batch: Callable[..., Session], other: Session
) -> None:
    table = {"postgresql": "LOCK TABLE lk_order IN ACCESS EXCLUSIVE MODE"}
    name = other.get_bind().dialect.name
    other.connection().exec_driver_sql(table.get(name, "LOCK TABLES lk_order WRITE"))
    try:
        with make_batch(lock_timeout=0.2) as batch, pytest.raises(LockNotAvailable):
            batch.get_entity(Order, 1, ForUpdate)
    finally:
        if name != "postgresql":
            other.connection().exec_driver_sql("UNLOCK TABLES")
        other.rollback()


@pytest.mark.databases("mysql", "mariadb")
def test_a_name_that_was_not_granted_needs_no_release(
    make_batch: Callable[..., Session], other: Session
) -> None:
    other.lock_key("import")
    with make_batch(lock_timeout=0.2) as batch:
        level = {"isolation_level": "READ COMMITTED"}
        connection = batch.connection(execution_options=level)
        with pytest.raises(LockNotAvailable):
            batch.lock_key("import")
        registered = connection.info["sa_doclock.on_return"]
        assert not any(isinstance(action, ExecuteStatement) for action in registered)


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_another_error_of_a_try_leaves_no_savepoint(make_batch: Callable[..., Session]) -> None:
    crossed = sa.select(Order).join(Voucher, sa.true()).order_by(Order.id).limit(1).offset(1)
    with make_batch(lock_timeout=0.2) as batch, batch.begin():
        with batch.begin_nested(), pytest.raises(LockNotSupported, match="OFFSET"):
            batch.execute(with_lock(crossed, ForUpdate))
        assert batch.get_entity(Order, 1, ForUpdate) is not None  # and without a warning


@pytest.mark.not_databases("sqlite")  # it has no row locks to skip
def test_skip_locked_with_a_lock_timeout_skips(
    make_batch: Callable[..., Session], other: Session
) -> None:
    hold(other)
    with make_batch() as session:
        found = session.get_entities(
            Order, [1, 2], ForUpdate | LockOptions.SkipLocked, lock_timeout=1
        )
        assert [order.id for order in found] == [2]


# --------------------------------------------------------------------------------------------------
# A batch under asyncio lets the event loop run while it pauses.

AsyncSession = AsyncLockingSession
Play = Callable[[AsyncEngine, AsyncSession, AsyncSession], Awaitable[None]]


def by_each_driver(play: Play) -> Any:
    """Run this with a session that holds order 1, and a batch session."""

    @in_a_loop
    async def test(documents: Database) -> None:
        for driver in drivers_of(documents.column):
            url = url_for(documents, driver)
            async with (
                connected(url) as engine,
                AsyncSession(engine) as holder,
                AsyncSession(engine, priority="batch") as batch,
            ):
                await holder.get_one_entity(Order, 1, ForUpdate)
                await play(engine, holder, batch)

    return test


async def _granted_in_the_end(
    engine: AsyncEngine, holder: AsyncSession, batch: AsyncSession
) -> None:
    with seeing_tries(engine.sync_engine) as tries:
        trying = asyncio.ensure_future(batch.get_one_entity(Order, 1, ForUpdate))
        await asyncio.to_thread(tries.wait_for, 1, each=3)  # without this loop there are no tries
        assert not trying.done()
        await holder.rollback()
        assert (await trying).total == 30
    assert list(batch.held_locks) == [(Order, (1,))]


async def _given_up(_: AsyncEngine, __: AsyncSession, batch: AsyncSession) -> None:
    with pytest.raises(LockNotAvailable, match=r"not granted within 0\.05 s") as caught:
        await batch.get_one_entity(Order, 1, ForUpdate, lock_timeout=0.05)
    assert caught.value.waited  # excludes the time to get the connection
    with pytest.raises(LockNotAvailable, match=r"not granted within 0\.05 s"):
        await batch.scalars(batch.entity_set(Order, ForUpdate, lock_timeout=0.05))
    assert not batch.in_transaction()


async def _alongside(_: AsyncEngine, holder: AsyncSession, batch: AsyncSession) -> None:
    turns: list[int] = [0]
    during: list[int] = []
    original = batches.pause

    async def work() -> None:
        while True:
            await asyncio.sleep(0)
            turns[0] += 1

    paused = asyncio.Event()

    def pause(seconds: float, **how: Any) -> None:
        before = turns[0]
        original(seconds, **how)
        during.append(turns[0] - before)
        paused.set()

    working = asyncio.ensure_future(work())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "pause", pause)
        trying = asyncio.ensure_future(batch.get_one_entity(Order, 1, ForUpdate))
        once = asyncio.ensure_future(paused.wait())
        await asyncio.wait([trying, once], return_when=asyncio.FIRST_COMPLETED)
        once.cancel()
        await holder.rollback()
        await trying
    working.cancel()
    assert during
    assert all(during)


async def _cancelled(engine: AsyncEngine, holder: AsyncSession, batch: AsyncSession) -> None:
    with seeing_tries(engine.sync_engine) as tries:
        trying = asyncio.ensure_future(batch.get_one_entity(Order, 1, ForUpdate))
        await asyncio.to_thread(tries.wait_for, 1)
        trying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await trying
    await batch.rollback()
    await holder.rollback()
    async with AsyncSession(engine) as other:
        await other.get_one_entity(Order, 1, ForUpdate | LockOptions.NoWait)


test_it_is_granted_in_the_end = by_each_driver(_granted_in_the_end)
test_it_is_given_up_when_its_limit_is_over = by_each_driver(_given_up)
test_others_of_the_loop_go_on_while_it_pauses = by_each_driver(_alongside)
test_it_can_be_cancelled = by_each_driver(_cancelled)
