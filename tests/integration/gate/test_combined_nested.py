"""gate.run() within a function of gate.run(): the same document is refused, another is allowed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import (
    AsyncLockingSession,
    DeadlockDetected,
    DocumentGate,
    LockingSession,
    LockMisuse,
    LockNotAvailable,
)
from sa_doclock.features.gate.combined import CombinedCommits
from tests.integration.asyncio.drivers import in_a_loop
from tests.integration.gate.test_combined import Function, Session, add, total
from tests.integration.gate.test_combined_async import opened
from tests.support.actors import PATIENCE
from tests.support.databases import Database
from tests.support.models import Order, Voucher


@pytest.fixture
def session_factory(engine: sa.Engine) -> sessionmaker[Session]:
    """Make sessions that do not queue at the gate by themselves."""
    return sessionmaker(engine, class_=LockingSession)


@pytest.fixture
def gate() -> DocumentGate:
    return DocumentGate(combine=4)


def test_the_same_document_within_a_function_is_refused(
    gate: DocumentGate, session_factory: Any, session: Session
) -> None:
    def again(_session: Session, order: Any) -> None:
        order.total += 1
        gate.run(session_factory, Order, "1", add(1))

    with pytest.raises(LockMisuse, match="is locked by the gate"):
        gate.run(session_factory, Order, 1, again)
    assert total(session) == 30
    assert gate.run(session_factory, Order, 1, add(1)) == 31


@pytest.mark.not_databases("sqlite")
def test_another_document_is_allowed_and_a_circle_is_found(
    gate: DocumentGate, session_factory: Any
) -> None:
    both_run = threading.Barrier(2)

    def then(ident: int) -> Function:
        def function(_session: Session, order: Any) -> Any:
            both_run.wait(PATIENCE)
            order.total += 1
            return gate.run(session_factory, Order, ident, add(10))

        return function

    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(gate.run, session_factory, Order, n, then(3 - n)) for n in (1, 2)]
        outcomes = [call.exception(PATIENCE) or call.result() for call in calls]
    found = [one for one in outcomes if isinstance(one, DeadlockDetected)]
    assert len(found) == 1
    assert found[0].retryable
    assert gate.waiting == 0


@pytest.mark.not_databases("sqlite")
def test_a_circle_of_three_is_found(gate: DocumentGate, session_factory: Any) -> None:
    documents = [(Order, 1), (Order, 2), (Voucher, (2024, 1))]
    all_run = threading.Barrier(3)

    def then(entity: Any, ident: Any) -> Function:
        def function(_session: Session, document: Any) -> Any:
            all_run.wait(PATIENCE)
            document.total += 1
            return gate.run(session_factory, entity, ident, add(10), lock_timeout=20)

        return function

    with ThreadPoolExecutor(3) as threads:
        run: Callable[..., Any] = gate.run
        calls = [
            threads.submit(run, session_factory, *documents[n - 1], then(*documents[n]))
            for n in range(3)
        ]
        outcomes = [call.exception(PATIENCE) or call.result() for call in calls]
    assert [type(one) for one in outcomes].count(DeadlockDetected) == 1
    assert sorted(one for one in outcomes if isinstance(one, int)) in ([15, 41], [16, 40], [40, 41])


@pytest.mark.not_databases("sqlite")
def test_a_circle_through_two_gates_is_found_when_both_look_for_it_at_once(
    session_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = {1: DocumentGate(), 2: DocumentGate()}
    both_run, both_look = threading.Barrier(2), threading.Barrier(2)
    reaches = CombinedCommits._reaches

    def look(commits: CombinedCommits, document: Any, others: Any) -> bool:
        found = reaches(commits, document, others)
        if others:
            with suppress(threading.BrokenBarrierError):  # the other one may not look now
                both_look.wait(0.2)
        return found

    def then(ident: int) -> Function:
        def function(_session: Session, _order: Any) -> Any:
            both_run.wait(PATIENCE)
            return gates[ident].run(session_factory, Order, ident, add(10), lock_timeout=2)

        return function

    monkeypatch.setattr(CombinedCommits, "_reaches", look)
    with ThreadPoolExecutor(2) as threads:
        run = [(gates[n].run, n, then(3 - n)) for n in gates]
        calls = [threads.submit(one, session_factory, Order, n, f) for one, n, f in run]
        outcomes = [call.exception(PATIENCE) or call.result() for call in calls]
    assert [type(one) for one in outcomes].count(DeadlockDetected) == 1


@pytest.mark.not_databases("sqlite")
def test_a_circle_through_two_session_factories_is_found(
    gate: DocumentGate, engine: sa.Engine, session_factory: Any
) -> None:
    other_factory = sessionmaker(engine, class_=LockingSession)
    both_run = threading.Barrier(2)

    def then(ident: int) -> Function:
        def function(_session: Session, _order: Any) -> Any:
            both_run.wait(PATIENCE)
            return gate.run(other_factory, Order, ident, add(10), lock_timeout=2)

        return function

    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(gate.run, session_factory, Order, n, then(3 - n)) for n in (1, 2)]
        outcomes = [call.exception(PATIENCE) or call.result() for call in calls]
    assert [type(one) for one in outcomes].count(DeadlockDetected) == 1
    assert CombinedCommits.waits_for == {}


def test_rows_of_several_databases_with_the_same_key_are_no_circle(
    gate: DocumentGate, tmp_path: Path
) -> None:
    engines = [sa.create_engine(f"sqlite:///{tmp_path}/{n}") for n in range(4)]
    for engine in engines:
        Order.metadata.create_all(engine)
        with LockingSession(engine) as session:
            session.add_all([Order(id=n, total=0) for n in (1, 2)])
            session.commit()
    sessions = [sessionmaker(engine, class_=LockingSession) for engine in engines]
    both_run, both_wait = threading.Barrier(2), threading.Barrier(2)

    def wait_inside(session: Session, order: Any) -> Any:
        both_wait.wait(PATIENCE)
        return add(10)(session, order)

    def outer(own: int, ident: int) -> Any:
        def function(_session: Session, _order: Any) -> Any:
            both_run.wait(PATIENCE)
            return gate.run(sessions[own + 2], Order, 3 - ident, wait_inside)

        return gate.run(sessions[own], Order, ident, function)

    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(outer, own, own + 1) for own in (0, 1)]
        assert [call.result(PATIENCE) for call in calls] == [10, 10]
    for engine in engines:
        engine.dispose()


@pytest.mark.not_databases("sqlite")
def test_another_document_is_committed_by_itself(
    gate: DocumentGate, session_factory: Any, session: Session
) -> None:
    def fail_after(_session: Session, order: Any) -> None:
        order.total += 1000
        assert gate.run(session_factory, Order, 2, add(10)) == 15
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        gate.run(session_factory, Order, 1, fail_after)
    assert [session.get_one(Order, n).total for n in (1, 2)] == [30, 15]


@pytest.mark.databases("sqlite")
def test_on_sqlite_another_document_has_the_same_lock(
    gate: DocumentGate, session_factory: Any, session: Session
) -> None:
    def again(_session: Session, _order: Any) -> None:
        gate.run(session_factory, Order, 2, add(10), lock_timeout=0.1)

    with pytest.raises(LockNotAvailable, match="Order 2"):
        gate.run(session_factory, Order, 1, again)
    assert session.get_one(Order, 2).total == 5


@pytest.mark.not_databases("sqlite")
@in_a_loop
async def test_a_circle_of_tasks_is_found(documents: Database) -> None:
    gate, running = DocumentGate(), 0
    both_run = asyncio.Event()

    async with opened(documents) as makes:

        def then(ident: int) -> Callable[[AsyncLockingSession, Any], Awaitable[int]]:
            async def function(_session: AsyncLockingSession, order: Any) -> int:
                nonlocal running
                running += 1
                if running == 2:
                    both_run.set()
                await both_run.wait()
                order.total += 1
                return int(await gate.async_run(makes, Order, ident, add_ten))

            return function

        async def add_ten(session: AsyncLockingSession, order: Any) -> int:
            return add(10)(session, order)  # type: ignore[arg-type, no-any-return]

        calls = [gate.async_run(makes, Order, n, then(3 - n)) for n in (1, 2)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert sorted(type(one).__name__ for one in found) == ["DeadlockDetected", "int"]
        assert gate.waiting == 0
