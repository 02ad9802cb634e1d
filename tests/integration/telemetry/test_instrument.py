"""instrument() and uninstrument(): once, twice, in the midst, and without OpenTelemetry."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
import sqlalchemy as sa
from opentelemetry import trace

from sa_doclock import (
    AsyncLockingSession,
    DeadlockDetected,
    LockingSession,
    LockNotAvailable,
    LockOptions,
    async_run_transaction,
)
from sa_doclock.opentelemetry import instrument, uninstrument
from tests.integration.asyncio.drivers import connected, in_a_loop, url_for
from tests.integration.telemetry.conftest import Instrument, Recorded
from tests.integration.telemetry.test_spans import statement_spans
from tests.support.databases import Database
from tests.support.models import Order

pytestmark = pytest.mark.databases("sqlite")

ForUpdate = LockOptions.ForUpdate
Session = LockingSession
EVENTS = ("before_lock", "after_lock", "lock_failed", "locks_released", "transaction_retried")


def test_twice_is_once(session: Session, instrumented: Instrument) -> None:
    before, reported = instrumented(), instrumented()
    with session.locked(Order, 1):
        pass
    assert (len(before.spans), len(reported.spans)) == (0, 1)
    assert (before.units(), sum(reported.sums("doclock.lock.outcomes").values())) == ({}, 1)


def test_nothing_is_left(session: Session, reported: Recorded) -> None:
    assert session.dispatch.before_lock
    uninstrument()
    uninstrument()
    assert not any(getattr(session.dispatch, name) for name in EVENTS)
    with session.locked(Order, 1):
        pass
    assert (reported.spans, reported.units()) == ([], {})


def test_the_providers_of_the_program_by_default(session: Session) -> None:
    instrument()  # none was set: all goes nowhere
    try:
        with session.locked(Order, 1):
            assert not trace.get_current_span().get_span_context().is_valid
    finally:
        uninstrument()


def test_again_in_the_midst_of_a_lock(session: Session, reported: Recorded) -> None:
    def change(*_: object) -> None:
        instrument()

    sa.event.listen(session, "lock_acquired", change)
    session.get_one_entity(Order, 1, ForUpdate)
    assert len(reported.spans) == 1
    assert not trace.get_current_span().is_recording()


def test_it_is_not_current_any_more(session: Session, other: Session, reported: Recorded) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    assert not trace.get_current_span().is_recording()
    with pytest.raises(LockNotAvailable):
        session.get_entity(Order, 1, ForUpdate, lock_timeout=0)
    assert not trace.get_current_span().is_recording()
    assert len(reported.spans) == 2


def test_without_opentelemetry() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import sa_doclock\n"
        "try:\n    import sa_doclock.opentelemetry\n"
        "except ImportError as error:\n    print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "pip install 'sa-doclock[otel]'" in run.stdout


def test_the_package_does_not_import_it() -> None:
    code = "import sa_doclock, sys; print('opentelemetry' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == "False"


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
