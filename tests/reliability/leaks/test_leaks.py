"""Cycle after cycle leaves nothing, and leaks made on purpose are found."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine

from sa_doclock import LockOptions
from sa_doclock.core.transaction import dialect_events
from sa_doclock.tools.cli.workload.tables import Document
from tests.integration.asyncio.drivers import url_for
from tests.reliability import Reliability, Soak
from tests.reliability.leaks.async_ways import (
    ASYNC_FAILURES,
    ASYNC_WAYS,
    RARE_ASYNC_FAILURES,
    AsyncScene,
)
from tests.reliability.leaks.cycles import WARM_UP, grown_since, leak_of, repeat, run_all
from tests.reliability.leaks.failures import FAILURES, RARE_FAILURES
from tests.reliability.leaks.footprint import footprint, growth
from tests.reliability.leaks.scene import CONNECT_ARGS, Scene
from tests.reliability.leaks.ways import RARE_WAYS, WAYS, change_and_save, read_and_release
from tests.support.databases import PIPELINED

pytestmark = pytest.mark.not_databases("sqlite-journal")  # the same code, and slower


# --------------------------------------------------------------------------------------------------
# Leaks made on purpose are found: an object, a number, a listener, a connection, a lock.

CYCLES = 20

Leak = Callable[[Scene], Any]


class Kept:
    """One of these for every cycle."""


def an_object(_: Scene) -> Any:
    return Kept()


def a_listener(scene: Scene) -> Any:
    def hear(*_: object) -> None: ...

    event.listen(scene.engine, "begin", hear)
    return hear


def a_statement(scene: Scene) -> Any:
    with scene.sessions() as session:
        number = scene.number
        session.get_one(Document, 0, execution_options={"number": number})
        session.scalars(session.entity_set(Document).where(Document.id != number)).all()
        columns = [Document.id.label(f"label_{number}")]
        return session.execute(session.entity_set(Document).with_only_columns(*columns)).all()


def a_member_of_a_set(_: Scene) -> Any:
    dialect = create_engine("sqlite://").dialect
    dialect_events._listened.add(dialect)
    return dialect


def _counts(scene: Scene, leak: Leak) -> dict[str, int]:
    kept: list[Any] = []

    def cycle(scene: Scene) -> None:
        read_and_release(scene)
        kept.append(leak(scene))

    return leak_of(scene, cycle, CYCLES)


@pytest.mark.databases("postgresql", "sqlite")
@pytest.mark.parametrize(
    ("leak", "name"),
    [
        (an_object, "object Kept"),
        (a_listener, "listeners"),
        (a_statement, "compiled statements"),
        (a_member_of_a_set, "in sa_doclock.core.transaction.dialect_events._listened"),
    ],
    ids=lambda one: one.__name__ if callable(one) else "",
)
def test_one_for_each_cycle(scene: Scene, leak: Leak, name: str) -> None:
    assert _counts(scene, leak)[name] == CYCLES


@pytest.mark.databases("postgresql", "sqlite")
def test_what_the_garbage_collector_does_not_know(scene: Scene) -> None:
    numbers, kept = itertools.count(10**9), []

    def cycle(_: Scene) -> None:
        kept.append(next(numbers))

    assert leak_of(scene, cycle, 30_000)["blocks"] > 20_000


@pytest.mark.databases("postgresql", "sqlite")
def test_a_connection_that_is_kept(scene: Scene) -> None:
    before = footprint(scene)
    kept = [scene.engine.connect() for _ in range(3)]
    found = growth(before, footprint(scene))
    assert found["connections checked out"] == 3
    assert found["sessions"] >= 2  # one was in the pool
    assert found["open files"] >= 2
    for connection in kept:
        connection.close()


@pytest.mark.databases("postgresql", "sqlite")
@pytest.mark.parametrize("lock", [LockOptions.ForUpdate, LockOptions.SharedRead])
def test_a_lock_that_is_kept(scene: Scene, lock: LockOptions) -> None:
    repeat(scene, read_and_release, WARM_UP)
    repeat(scene, change_and_save, WARM_UP)
    before = footprint(scene)
    with scene.sessions() as session:
        kept = session.get_one_entity(Document, 1, lock)
        assert growth(before, footprint(scene))["locks"] >= 1
        assert kept.id == 1
    del session, kept
    assert not grown_since(scene, before)


@pytest.mark.databases("postgresql", "sqlite")
def test_memory_outside_of_python(scene: Scene) -> None:
    before = footprint(scene)
    kept = bytearray(64 * 1024 * 1024)  # what other tests have left may be freed meanwhile
    kept[::4096] = b"x" * len(kept[::4096])  # touched, so that it is really there
    assert growth(before, footprint(scene))["kB of memory"] > 32_000
    assert kept


# --------------------------------------------------------------------------------------------------
# Cycle after cycle leaves nothing: not an object, a listener, a connection, nor a lock.


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.databases("postgresql", "sqlite")
@pytest.mark.slow
def test_locking_and_letting_go_leaves_nothing(
    scene: Scene, soak: Soak, reliability: Reliability
) -> None:
    row = reliability.row("locks taken and let go", scene.database.column)
    run_all(scene, soak, row, WAYS, soak.times(short=15 * len(WAYS), long=100_000))


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.databases("postgresql", "sqlite")
@pytest.mark.slow
def test_failing_leaves_nothing(scene: Scene, soak: Soak, reliability: Reliability) -> None:
    row = reliability.row("locks failed", scene.database.column)
    run_all(scene, soak, row, FAILURES, soak.times(short=15 * len(FAILURES), long=10_000))


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.databases("postgresql", "sqlite")
@pytest.mark.slow
def test_what_takes_long_leaves_nothing(scene: Scene, soak: Soak, reliability: Reliability) -> None:
    ways = (*RARE_WAYS, *RARE_FAILURES)
    row = reliability.row("engines made, connections lost, deadlocks", scene.database.column)
    run_all(scene, soak, row, ways, soak.times(short=12, long=300) * len(ways))


# --------------------------------------------------------------------------------------------------
# So it is under asyncio, with each driver.

WAYS_ASYNC = (*ASYNC_WAYS, *ASYNC_FAILURES)


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
        run_all(
            async_scene, soak, row, WAYS_ASYNC, soak.times(short=12, long=1_000) * len(WAYS_ASYNC)
        )

    return run


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.slow
@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_on_postgresql(cycles_leave_nothing: Callable[[], None]) -> None:
    cycles_leave_nothing()


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.slow
@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("driver", ["aiosqlite"])
def test_on_sqlite(cycles_leave_nothing: Callable[[], None]) -> None:
    cycles_leave_nothing()
