"""With a gate everything means the same: who is refused, when, and what nobody has to wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import PendingRollbackError

from sa_doclock import DeadlockDetected, DocumentGate, LockingSession, LockNotAvailable, LockOptions
from sa_doclock.dialects import strategy_for
from sa_doclock.features.gate import queues_of
from sa_doclock.features.gate import session_queue as passage
from tests.integration.gate.queueing import wait_until_queued
from tests.integration.locking.steps import locks, recorded, roll_back
from tests.integration.timeouts.ways import SHORT
from tests.support.actors import Actor
from tests.support.databases import PIPELINED
from tests.support.models import Order
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.quick

Player = Actor[LockingSession]
Session = LockingSession
ForUpdate, SharedRead, NoWait = LockOptions.ForUpdate, LockOptions.SharedRead, LockOptions.NoWait


def test_who_does_not_get_it_in_time_gets_an_error_with_the_document(
    gate: DocumentGate, alice: Player, bob: Player
) -> None:
    alice.does(locks(Order, 1))
    with pytest.raises(LockNotAvailable) as caught:
        bob.does(locks(Order, 1, lock_timeout=SHORT))
    error = caught.value
    assert (error.entity, error.ident, error.lock) == (Order, 1, ForUpdate)
    assert error.args[0].endswith("not granted within 0.05 s; try again later, or wait longer")
    assert error.orig is None  # it was not the server that has refused
    assert error.waited >= SHORT
    assert error.retryable
    assert not bob.does(lambda session: session.in_transaction())
    assert gate.waiting == 0


def test_a_transaction_of_the_callers_refuses_all_that_follows(alice: Player, bob: Player) -> None:
    def in_a_transaction(session: Session) -> None:
        session.begin()
        session.get_entity(Order, 1, ForUpdate, lock_timeout=SHORT)

    alice.does(locks(Order, 1))
    with pytest.raises(LockNotAvailable):
        bob.does(in_a_transaction)
    with pytest.raises(PendingRollbackError):
        bob.does(lambda session: session.get_entity(Order, 2, ForUpdate))
    bob.does(roll_back)
    alice.does(roll_back)
    assert bob.does(locks(Order, 1)).total == 30


class Clock:
    """Stands still, but when the test says so."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(passage, "time", clock)
    return clock


@pytest.fixture
def limits(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """Note how long the server may wait, of each lock that it is asked for."""
    noted: list[float | None] = []
    waits = strategy_for(engine).waits
    limited = waits.limited

    def note(
        connection: sa.Connection, lock: LockOptions, seconds: float | None, **how: Any
    ) -> Any:
        noted.append(seconds)
        return limited(connection, lock, seconds, **how)

    monkeypatch.setattr(waits, "limited", note)
    return noted


@pytest.mark.not_databases(PIPELINED)  # where a pipeline limits the wait
def test_what_was_waited_at_the_gate_is_taken_off(
    gate: DocumentGate, clock: Clock, limits: list[float | None], alice: Player, bob: Player
) -> None:
    alice.does(locks(Order, 1, lock_timeout=29.5))
    assert set(limits) == {29.5}  # it had not to wait
    queued = bob.starts(locks(Order, 1, lock_timeout=20))
    wait_until_queued(gate, queued)
    clock.now += 7
    alice.does(roll_back)
    queued.result()
    assert set(limits) == {29.5, 14}  # of the 13 s that are left, in tenths of the whole


def test_who_comes_in_when_the_time_is_over_gets_that_error(
    gate: DocumentGate, clock: Clock, limits: list[float | None], alice: Player, bob: Player
) -> None:
    alice.does(locks(Order, 1))
    limits.clear()
    queued = bob.starts(locks(Order, 1, lock_timeout=20))
    wait_until_queued(gate, queued)
    clock.now += 20
    alice.does(roll_back)
    assert isinstance(queued.exception(), LockNotAvailable)
    assert not limits
    assert queues_of(gate).documents == {}


def test_no_wait_asks_the_database(alice: Player, bob: Player) -> None:
    alice.does(locks(Order, 1))
    with pytest.raises(LockNotAvailable, match="held by another") as caught:
        bob.does(locks(Order, 1, lock_timeout=0))
    assert caught.value.orig is not None


def test_the_lock_of_the_database_keeps_out_who_does_not_come_by_the_gate(
    alice: Player, dave: Callable[..., Player], past_the_gate: Callable[[], Session]
) -> None:
    alice.does(locks(Order, 1))
    outsider = dave(past_the_gate)
    queued = outsider.starts(locks(Order, 1))
    wait_until_blocked(waiter=outsider, holder=alice, step=queued)
    alice.does(roll_back)
    queued.result()


def test_who_does_not_come_by_the_gate_keeps_out_who_does(
    gate: DocumentGate,
    alice: Player,
    dave: Callable[..., Player],
    past_the_gate: Callable[[], Session],
) -> None:
    outsider = dave(past_the_gate)
    outsider.does(locks(Order, 1))
    queued = alice.starts(locks(Order, 1))
    wait_until_blocked(waiter=alice, holder=outsider, step=queued)
    assert gate.waiting == 0
    outsider.does(roll_back)
    queued.result()


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_two_documents_crosswise_are_a_deadlock_that_the_server_sees(
    gate: DocumentGate, alice: Player, bob: Player
) -> None:
    alice.does(locks(Order, 1))
    bob.does(locks(Order, 2))
    queued = bob.starts(locks(Order, 1))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    assert gate.waiting == 0
    crossed = alice.starts(locks(Order, 2))
    failures = [step.exception() for step in (queued, crossed)]
    (failure,) = [failure for failure in failures if failure is not None]
    assert isinstance(failure, DeadlockDetected)


def test_the_gate_sends_nothing(
    engine: sa.Engine, session: Session, past_the_gate: Callable[[], Session]
) -> None:
    def sent(session: Session) -> list[str]:
        with recorded(engine) as statements:
            kept = locks(Order, 1, lock_timeout=5.5)(session)
            session.save_changes()
        del kept
        return statements

    with past_the_gate() as without:
        sent(without)
        expected = sent(without)
    assert sent(session) == expected
