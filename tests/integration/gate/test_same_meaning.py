"""A gate changes no meaning: the same refusals at the same time, and no additional waits."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import PendingRollbackError
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool, SingletonThreadPool, StaticPool

from sa_doclock import (
    DeadlockDetected,
    DocumentGate,
    LockingSession,
    LockMisuse,
    LockNotAvailable,
    LockOptions,
)
from sa_doclock.dialects import strategy_for
from sa_doclock.features.gate import queues_of
from sa_doclock.features.gate import session_queue as passage
from tests.integration.gate.queueing import in_use, wait_until_queued
from tests.integration.locking.steps import locks, recorded, roll_back, save
from tests.integration.timeouts.ways import SHORT
from tests.support.actors import Actor
from tests.support.databases import PIPELINED
from tests.support.models import Customer, Order
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.quick

ForUpdate, SharedRead, NoWait = LockOptions.ForUpdate, LockOptions.SharedRead, LockOptions.NoWait


Player = Actor[LockingSession]
Session = LockingSession


def test_who_does_not_get_it_in_time_gets_an_error_with_the_document(
    gate: DocumentGate, alice: Player, bob: Player
) -> None:
    alice.does(locks(Order, 1))
    with pytest.raises(LockNotAvailable) as caught:
        bob.does(locks(Order, 1, lock_timeout=SHORT))
    error = caught.value
    assert (error.entity, error.ident, error.lock) == (Order, 1, ForUpdate)
    assert error.args[0].endswith("not granted within 0.05 s; try again later, or wait longer")
    assert error.orig is None  # the server did not refuse it
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
    """Advances only when the test says so."""

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
    """Record the server's wait limit for each lock."""
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


@pytest.mark.not_databases(PIPELINED)  # there a pipeline limits the wait
def test_what_was_waited_at_the_gate_is_taken_off(
    gate: DocumentGate, clock: Clock, limits: list[float | None], alice: Player, bob: Player
) -> None:
    alice.does(locks(Order, 1, lock_timeout=29.5))
    assert set(limits) == {29.5}  # it did not have to wait
    queued = bob.starts(locks(Order, 1, lock_timeout=20))
    wait_until_queued(gate, queued)
    clock.now += 7
    alice.does(roll_back)
    queued.result()
    assert set(limits) == {29.5, 14}  # of the remaining 13 s, in tenths of the whole


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


# --------------------------------------------------------------------------------------------------
# A lock holder that requests a connection in another session gets an error at once.


def flushes(session: Session) -> None:
    session.add(Customer(id=9, name="Zoe"))
    session.flush()


USES: Mapping[str, Callable[[Session], Any]] = {
    "locks another": locks(Order, 2),
    "locks the same": locks(Order, 1),
    "takes a key": lambda session: session.lock_key("a"),
    "reads": lambda session: session.get(Customer, 1),
    "reads a snapshot": locks(Order, 1, LockOptions.SnapshotRead),
    "executes": lambda session: session.execute(sa.select(Customer.id)),
    "flushes": flushes,
    "connects": lambda session: session.connection(),
    "asks for the engine": lambda session: session.get_bind(),  # as docs/gate.md says
}
each_use = pytest.mark.parametrize("use", USES.values(), ids=USES)


@each_use
def test_it_is_reported(
    engine: sa.Engine, session: Session, other: Session, use: Callable[[Session], Any]
) -> None:
    kept = session.get_entity(Order, 1, ForUpdate)
    with pytest.raises(LockMisuse, match="holds Order 1 in another session"):
        use(other)
    assert in_use(engine) == 1
    session.rollback()
    other.rollback()
    assert use(other) is not False  # after the first ends
    del kept


def test_the_document_that_it_wanted_is_named(session: Session, other: Session) -> None:
    kept = session.get_entity(Order, 1, ForUpdate)
    with pytest.raises(LockMisuse, match=r"^Order 2 FOR UPDATE on ") as caught:
        other.get_entity(Order, 2, ForUpdate)
    assert (caught.value.entity, caught.value.ident) == (Order, 2)
    assert not caught.value.retryable
    del kept


@pytest.mark.parametrize(
    "hold",
    [
        lambda session: session.scalars(session.entity_set(Order, ForUpdate)).all(),
        lambda session: session.get_entity(Order, 1, ForUpdate | LockOptions.NoWait),
        lambda session: session.lock_key("a"),
        lambda session: session.scalars(sa.select(Order).with_for_update()).all(),
    ],
    ids=["a set", "without waiting", "a key", "with_for_update"],
)
def test_whatever_lock_it_is(
    session: Session, other: Session, hold: Callable[[Session], Any]
) -> None:
    kept = hold(session)
    with pytest.raises(LockMisuse, match="in another session"):
        other.get(Customer, 1)
    del kept


def test_no_lock_is_no_reason(session: Session, other: Session) -> None:
    session.get(Customer, 1)
    assert other.get(Customer, 1) is not None
    session.rollback()
    assert session.get_entity(Order, 99, ForUpdate) is None
    session.rollback()
    kept = session.get_entity(Order, 1, LockOptions.SnapshotRead)
    assert other.get(Customer, 1) is not None
    del kept


@pytest.mark.not_databases("sqlite")
def test_one_that_is_connected_goes_on(session: Session, other: Session) -> None:
    other.get(Customer, 1)
    kept = session.get_entity(Order, 1, ForUpdate)
    assert other.get(Order, 2) is not None
    del kept


def test_another_engine_is_no_reason(
    make_engine: Callable[..., sa.Engine], gate: DocumentGate, session: Session
) -> None:
    kept = session.get_entity(Order, 1, ForUpdate)
    with LockingSession(make_engine(), gate=gate) as elsewhere:
        assert elsewhere.get(Customer, 1) is not None
    del kept


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"poolclass": NullPool}, False),
        ({"max_overflow": -1}, True),  # no public attribute shows that it has no limit
        ({"pool_size": 0}, True),
        ({"poolclass": SingletonThreadPool}, False),
        ({"poolclass": StaticPool}, False),
        ({"pool_size": 1, "max_overflow": 1}, True),
    ],
    ids=["none", "any overflow", "any size", "of threads", "static", "of two"],
)
def test_nor_is_a_pool_that_is_never_exhausted(
    make_engine: Callable[..., sa.Engine],
    gate: DocumentGate,
    options: dict[str, Any],
    reported: bool,  # of a table
) -> None:
    engine = make_engine(**options)
    with LockingSession(engine, gate=gate) as session, LockingSession(engine, gate=gate) as other:
        kept = session.get_entity(Order, 1, ForUpdate)
        with pytest.raises(LockMisuse) if reported else nullcontext():
            assert other.get(Customer, 1) is not None
        del kept


def test_nor_is_a_session_without_the_gate(
    session: Session, past_the_gate: Callable[[], Session]
) -> None:
    kept = session.get_entity(Order, 1, ForUpdate)
    with past_the_gate() as beside:
        assert beside.get(Customer, 1) is not None
    del kept


def test_the_gate_may_let_it(engine: sa.Engine) -> None:
    gate = DocumentGate(second_session="allow")
    factory = sessionmaker(engine, class_=LockingSession, gate=gate)
    with factory() as session, factory() as other:
        kept = session.get_entity(Order, 1, ForUpdate)
        assert other.get(Customer, 1) is not None
        del kept


def test_what_runs_after_the_commit_has_a_session_of_its_own(
    session: Session, other: Session
) -> None:
    names = []
    kept = session.get_entity(Order, 1, ForUpdate)
    session.on_commit(lambda: names.append(other.get_one(Customer, 1).name))
    save(session)
    assert names == ["Ann"]
    del kept


def in_thread(action: Callable[[], object]) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:  # noqa: BLE001  # raised below
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def test_another_thread_is_another_matter(session: Session, other: Session) -> None:
    kept = session.get_entity(Order, 1, ForUpdate)
    in_thread(lambda: other.get_one(Customer, 1))
    context = contextvars.copy_context()  # like a framework's thread pool
    in_thread(lambda: context.run(other.get_one, Order, 2))
    del kept


def test_a_lock_that_was_handed_on_is_not_of_this_thread_any_more(
    session: Session, other: Session
) -> None:
    kept = session.get_entity(Order, 1, ForUpdate)
    in_thread(session.rollback)
    assert other.get(Customer, 1) is not None
    del kept


def test_a_pools_thread_does_not_remember_what_another_request_has_locked(
    session: Session, other: Session
) -> None:
    # Each request runs in a copy of its context; several requests share a thread in turn.
    kept = contextvars.copy_context().run(session.get_entity, Order, 1, ForUpdate)
    assert contextvars.copy_context().run(other.get, Customer, 1) is not None
    del kept
