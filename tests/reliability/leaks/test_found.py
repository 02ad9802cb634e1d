"""Leaks made on purpose are found: an object, a number, a listener, a connection, a lock."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import create_engine, event

from sa_doclock import LockOptions
from sa_doclock.core.transaction import dialect_events
from sa_doclock.tools.cli.workload.tables import Document
from tests.reliability.leaks.cycles import WARM_UP, grown_since, leak_of, repeat
from tests.reliability.leaks.footprint import footprint, growth
from tests.reliability.leaks.scene import Scene
from tests.reliability.leaks.ways import change_and_save, read_and_release

pytestmark = [
    pytest.mark.databases("postgresql", "sqlite"),
    pytest.mark.not_databases("sqlite-journal"),
]
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


def test_what_the_garbage_collector_does_not_know(scene: Scene) -> None:
    numbers, kept = itertools.count(10**9), []

    def cycle(_: Scene) -> None:
        kept.append(next(numbers))

    assert leak_of(scene, cycle, 30_000)["blocks"] > 20_000


def test_a_connection_that_is_kept(scene: Scene) -> None:
    before = footprint(scene)
    kept = [scene.engine.connect() for _ in range(3)]
    found = growth(before, footprint(scene))
    assert found["connections checked out"] == 3
    assert found["sessions"] >= 2  # one was in the pool
    assert found["open files"] >= 2
    for connection in kept:
        connection.close()


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


def test_memory_outside_of_python(scene: Scene) -> None:
    before = footprint(scene)
    kept = bytearray(64 * 1024 * 1024)  # what other tests have left may be freed meanwhile
    kept[::4096] = b"x" * len(kept[::4096])  # touched, so that it is really there
    assert growth(before, footprint(scene))["kB of memory"] > 32_000
    assert kept
