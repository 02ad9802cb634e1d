"""Many sessions lock the same documents in different orders: get_entities avoids deadlocks."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import DeadlockDetected, LockingSession, LockOptions
from sa_doclock.dialects import strategy_for
from sa_doclock.dialects.base import MaxParameters
from tests.support.models import Contract, Lease, Order, Voucher

ForUpdate = LockOptions.ForUpdate
THREADS, ROUNDS = 16, 10
Factory = sessionmaker[LockingSession]


@pytest.fixture
def read_committed() -> dict[str, Any]:
    """Make a pool with a connection for each session, and without a limit on waits."""
    return {"pool_size": THREADS}


def keys_of(entity: type[Any], numbers: range) -> list[Any]:
    if entity is Voucher:
        return [(2024 if number < 3 else 2025, number) for number in numbers]
    return [number for number in numbers if entity is not Lease or number != 2]


def together(
    work: Callable[[random.Random], None], threads: int = THREADS
) -> list[BaseException | None]:
    """Run all threads at the same time; return the error of each."""
    start = threading.Barrier(threads)

    def run(number: int) -> None:
        start.wait()
        work(random.Random(number))

    with ThreadPoolExecutor(threads) as pool:
        steps = [pool.submit(run, number) for number in range(threads)]
    return [step.exception() for step in steps]


@pytest.mark.slow
@pytest.mark.read_committed
@pytest.mark.parametrize(
    ("entity", "parameters"), [(Order, None), (Order, 7), (Lease, 7), (Voucher, None)]
)
def test_nobody_is_in_anybodys_way_for_ever(
    engine: sa.Engine,
    session_factory: Factory,
    session: LockingSession,
    twenty: range,
    monkeypatch: pytest.MonkeyPatch,
    entity: type[Any],
    parameters: int | None,
) -> None:
    if parameters is not None:
        monkeypatch.setattr(
            strategy_for(engine).statements, "max_parameters", MaxParameters(parameters)
        )
    keys = keys_of(entity, twenty)
    before = {key: session.get_one(entity, key).total for key in keys}
    session.rollback()

    def work(chance: random.Random) -> None:
        for _ in range(ROUNDS):
            with session_factory.begin() as own:
                some = chance.sample(keys, len(keys))
                for document in own.get_entities(entity, some, ForUpdate):
                    document.total += 1

    assert together(work) == [None] * THREADS
    assert {key: session.get_one(entity, key).total - before[key] for key in keys} == (
        dict.fromkeys(keys, THREADS * ROUNDS)
    )


@pytest.mark.slow
@pytest.mark.read_committed
@pytest.mark.parametrize("entity", [Order, Contract])
def test_nor_with_other_documents_each(
    session_factory: Factory, session: LockingSession, twenty: range, entity: type[Any]
) -> None:
    keys = keys_of(entity, twenty)
    before = sum(session.get_one(entity, key).total for key in keys)
    session.rollback()

    def work(chance: random.Random) -> None:
        for _ in range(ROUNDS):
            with session_factory.begin() as own:
                some = chance.sample(keys, 10)
                for document in own.get_entities(entity, some, ForUpdate):
                    document.total += 1

    assert together(work) == [None] * THREADS
    assert sum(session.get_one(entity, key).total for key in keys) - before == (
        THREADS * ROUNDS * 10
    )


@pytest.mark.not_databases("sqlite")  # there is one lock per file
@pytest.mark.read_committed
def test_one_by_one_they_deadlock(session_factory: Factory, twenty: range) -> None:
    found: list[BaseException] = []

    def work(chance: random.Random) -> None:
        for _ in range(10 * ROUNDS):
            if found:
                return
            try:
                with session_factory.begin() as own:
                    for ident in chance.sample(twenty, len(twenty)):
                        own.get_one_entity(Order, ident, ForUpdate).total += 1
            except DeadlockDetected as error:
                found.append(error)

    assert together(work, threads=4) == [None] * 4
    assert found
