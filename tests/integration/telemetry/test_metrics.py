"""Histograms of waits and holds; counters of outcomes, deadlocks and retries."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from opentelemetry import trace
from sqlalchemy.orm import sessionmaker

from sa_doclock import (
    AsyncLockingSession,
    DeadlockDetected,
    LockingSession,
    LockNotAvailable,
    LockOptions,
    async_run_transaction,
    run_transaction,
)
from sa_doclock.opentelemetry import instrument, uninstrument
from tests.integration.asyncio.drivers import connected, in_a_loop, url_for
from tests.integration.locking.steps import cross, locks
from tests.integration.telemetry.conftest import Instrument, Recorded
from tests.integration.telemetry.test_spans import statement_spans
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Contract, Customer, Lease, Order

ForUpdate, NoWait = LockOptions.ForUpdate, LockOptions.NoWait
Session = LockingSession


@pytest.mark.databases("sqlite", "postgresql")
@pytest.mark.read_committed
def test_names_and_units_and_buckets(session: Session, reported: Recorded) -> None:
    with session.locked(Order, 1):
        pass
    assert reported.units() == {
        "doclock.lock.wait": "s",
        "doclock.lock.held": "{lock}",
        "doclock.lock.hold": "s",
        "doclock.lock.outcomes": "{lock}",
    }
    (wait,) = reported.points("doclock.lock.wait")
    (hold,) = reported.points("doclock.lock.hold")
    assert wait.explicit_bounds[:3] == hold.explicit_bounds[:3] == (0.001, 0.005, 0.01)
    assert hold.explicit_bounds[-1] == 1800
    assert wait.sum > 0
    assert hold.sum > 0


@pytest.mark.databases("sqlite", "postgresql")
@pytest.mark.read_committed
def test_outcomes_and_ends(session: Session, other: Session, reported: Recorded) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    for _ in range(2):
        with pytest.raises(LockNotAvailable):
            session.get_entity(Order, 1, ForUpdate | NoWait)
    other.commit()
    session.get_entities(Order, [1, 2], ForUpdate)
    session.lock_key("a name")
    session.rollback()
    outcomes = {
        ("Order", "ForUpdate", "granted"): 2,
        ("Order", "ForUpdate|NoWait", "not_available"): 2,
        ("key", "ForUpdate", "granted"): 1,
    }
    assert reported.sums("doclock.lock.outcomes") == outcomes
    assert reported.sums("doclock.lock.wait") == outcomes
    assert reported.sums("doclock.lock.hold") == {
        ("committed", "Order", "ForUpdate"): 1,
        ("rolled_back", "Order", "ForUpdate"): 2,
        ("rolled_back", "key", "ForUpdate"): 1,
    }
    assert reported.sums("doclock.lock.deadlocks") == {}


@pytest.mark.databases("sqlite", "postgresql")
@pytest.mark.read_committed
def test_subclasses_count_with_their_header(session: Session, reported: Recorded) -> None:
    session.get_one_entity(Lease, 1, ForUpdate)
    session.commit()
    assert reported.spans[0].name == "lock Lease"
    for name in ("doclock.lock.wait", "doclock.lock.hold", "doclock.lock.outcomes"):
        (point,) = reported.points(name)
        assert point.attributes["doclock.entity"] == Contract.__name__


@pytest.mark.databases("sqlite", "postgresql")
@pytest.mark.read_committed
@pytest.mark.not_databases("sqlite")
def test_a_deadlock_of_locks(
    alice: Actor[Session], bob: Actor[Session], reported: Recorded
) -> None:
    alice.does(locks(Order, 1))
    bob.does(locks(Order, 2))
    loser, _, winner, step = cross(alice, bob, lambda ident: locks(Order, ident))
    step.result()
    for actor in (loser, winner):
        actor.does(lambda session: session.rollback())
    assert reported.sums("doclock.lock.deadlocks") == {("Order", "ForUpdate"): 1}
    assert reported.sums("doclock.lock.outcomes") == {
        ("Order", "ForUpdate", "granted"): 3,
        ("Order", "ForUpdate", "deadlock"): 1,
    }


def flush_name(ident: int) -> Callable[[Session], None]:
    def step(session: Session) -> None:
        session.get_one(Customer, ident).name = "changed"
        session.flush()

    return step


@pytest.mark.databases("sqlite", "postgresql")
@pytest.mark.read_committed
@pytest.mark.not_databases("sqlite")
def test_a_deadlock_of_writes(
    alice: Actor[Session], bob: Actor[Session], reported: Recorded
) -> None:
    alice.does(locks(Order, 1))
    alice.does(flush_name(1))
    bob.does(flush_name(2))
    loser, _, winner, step = cross(alice, bob, flush_name)
    step.result()
    for actor in (loser, winner):
        actor.does(lambda session: session.rollback())
    (deadlock,) = reported.points("doclock.lock.deadlocks")
    assert deadlock.value == 1
    assert sum(reported.sums("doclock.lock.outcomes").values()) == 2
    assert len(reported.spans) == 1


@pytest.mark.databases("sqlite", "postgresql")
@pytest.mark.read_committed
def test_retries(session_factory: sessionmaker[Session], reported: Recorded) -> None:
    errors = [DeadlockDetected("made up", entity=Order, ident=1, lock=ForUpdate) for _ in range(3)]

    def fail(session: Session) -> None:
        session.get_one_entity(Order, 1, ForUpdate)
        raise errors.pop()

    with pytest.raises(DeadlockDetected):
        run_transaction(session_factory, fail, attempts=3, backoff=0)
    assert reported.sums("doclock.transaction.retries") == {
        ("Order", "retried", "DeadlockDetected"): 2,
        ("Order", "given_up", "DeadlockDetected"): 1,
    }
    assert reported.sums("doclock.lock.hold") == {("rolled_back", "Order", "ForUpdate"): 3}


@pytest.mark.databases("sqlite", "postgresql")
@pytest.mark.read_committed
@pytest.mark.not_databases("sqlite")
def test_a_real_conflict_that_is_retried(
    session_factory: sessionmaker[Session], engine: sa.Engine, reported: Recorded
) -> None:
    factory = sessionmaker(
        engine.execution_options(isolation_level="REPEATABLE READ"), class_=LockingSession
    )
    runs = []

    def rename(session: Session) -> None:
        runs.append(session)
        customer = session.get_one(Customer, 1)
        if len(runs) == 1:
            with session_factory.begin() as other:
                other.get_one(Customer, 1).name = "other"
        customer.name = "mine"
        session.flush()

    run_transaction(factory, rename, backoff=0)
    (retry,) = reported.points("doclock.transaction.retries")
    assert (retry.value, retry.attributes["doclock.outcome"]) == (1, "retried")
    assert retry.attributes["error.type"] == "SnapshotConflict"


# --------------------------------------------------------------------------------------------------
# instrument() and uninstrument(): once, twice, in mid-use, and without OpenTelemetry.

EVENTS = ("before_lock", "after_lock", "lock_failed", "locks_released", "transaction_retried")


@pytest.mark.databases("sqlite")
def test_twice_is_once(session: Session, instrumented: Instrument) -> None:
    before, reported = instrumented(), instrumented()
    with session.locked(Order, 1):
        pass
    assert (len(before.spans), len(reported.spans)) == (0, 1)
    assert (before.units(), sum(reported.sums("doclock.lock.outcomes").values())) == ({}, 1)


@pytest.mark.databases("sqlite")
def test_nothing_is_left(session: Session, reported: Recorded) -> None:
    assert session.dispatch.before_lock
    uninstrument()
    uninstrument()
    assert not any(getattr(session.dispatch, name) for name in EVENTS)
    with session.locked(Order, 1):
        pass
    assert (reported.spans, reported.units()) == ([], {})


@pytest.mark.databases("sqlite")
def test_the_providers_of_the_program_by_default(session: Session) -> None:
    instrument()  # none set: nothing is recorded
    try:
        with session.locked(Order, 1):
            assert not trace.get_current_span().get_span_context().is_valid
    finally:
        uninstrument()


@pytest.mark.databases("sqlite")
def test_again_in_the_midst_of_a_lock(session: Session, reported: Recorded) -> None:
    def change(*_: object) -> None:
        instrument()

    sa.event.listen(session, "lock_acquired", change)
    session.get_one_entity(Order, 1, ForUpdate)
    assert len(reported.spans) == 1
    assert not trace.get_current_span().is_recording()


@pytest.mark.databases("sqlite")
def test_it_is_not_current_any_more(session: Session, other: Session, reported: Recorded) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    assert not trace.get_current_span().is_recording()
    with pytest.raises(LockNotAvailable):
        session.get_entity(Order, 1, ForUpdate, lock_timeout=0)
    assert not trace.get_current_span().is_recording()
    assert len(reported.spans) == 2


@pytest.mark.databases("sqlite")
def test_without_opentelemetry() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import sa_doclock\n"
        "try:\n    import sa_doclock.opentelemetry\n"
        "except ImportError as error:\n    print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "pip install 'sa-doclock[otel]'" in run.stdout


@pytest.mark.databases("sqlite")
def test_the_package_does_not_import_it() -> None:
    code = "import sa_doclock, sys; print('opentelemetry' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == "False"


@pytest.mark.databases("sqlite")
@pytest.mark.databases("sqlite", "postgresql")
@in_a_loop
async def test_tasks_have_spans_of_their_own(documents: Database, reported: Recorded) -> None:
    driver = {"sqlite": "aiosqlite", "postgresql": "asyncpg"}[documents.name]
    tracer = reported.tracers.get_tracer("the program")

    async def lock(session: AsyncLockingSession, ident: int) -> None:
        with tracer.start_as_current_span(f"task {ident}"):
            async with session:
                await session.get_one_entity(Order, ident, LockOptions.SharedRead)
                await session.rollback()

    async with connected(url_for(documents, driver)) as engine:
        with statement_spans(engine.sync_engine, reported):
            tasks = (lock(AsyncLockingSession(engine), ident) for ident in (1, 2))
            await asyncio.gather(*tasks)
    spans: dict[Any, Any] = {one.context.span_id: one for one in reported.spans if one.context}
    locks = [one for one in spans.values() if one.name == "lock Order"]
    assert {spans[one.parent.span_id].name for one in locks} == {"task 1", "task 2"}
    inside = [one.parent for one in spans.values() if one.name == "statement"]
    assert {spans[parent.span_id].name for parent in inside if parent} == {"lock Order"}


@pytest.mark.databases("sqlite")
@in_a_loop
async def test_retries_of_tasks(documents: Database, reported: Recorded) -> None:
    runs = []

    async def fail_once(session: AsyncLockingSession) -> None:
        runs.append(session)
        if len(runs) == 1:
            raise DeadlockDetected("made up")

    async with connected(url_for(documents, "aiosqlite")) as engine:
        await async_run_transaction(lambda: AsyncLockingSession(engine), fail_once, backoff=0)
    assert reported.sums("doclock.transaction.retries") == {("retried", "DeadlockDetected"): 1}
