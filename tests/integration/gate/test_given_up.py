"""Releasing the lock, in whatever way, gives up the place at the gate."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import (
    AsyncLockingSession,
    DocumentGate,
    LockingSession,
    LockNotAvailable,
    LockOptions,
)
from sa_doclock.features.gate import queues_of
from sa_doclock.features.gate.combined import CombinedCommits
from sa_doclock.features.gate.queue import QueueEntry, under_mutex
from tests.integration.gate.queueing import enter, wait_until_queued
from tests.integration.locking.steps import add_ten, locks, roll_back, save
from tests.support.actors import Actor
from tests.support.models import Order
from tests.support.tracing import CtrlC

ForUpdate = LockOptions.ForUpdate


Player = Actor[LockingSession]
Session = LockingSession


def closes(session: Session) -> None:
    session.close()


def commits(session: Session) -> None:
    session.commit()


def resets(session: Session) -> None:
    session.reset()


def invalidates(session: Session) -> None:
    session.invalidate()


def loses_its_connection(session: Session) -> None:
    session.connection().invalidate()
    assert not session.held_locks


ENDS = [save, commits, roll_back, closes, resets, invalidates, loses_its_connection]


@pytest.mark.parametrize("end", ENDS)
def test_with_the_transaction(
    gate: DocumentGate, alice: Player, bob: Player, end: Callable[[Session], None]
) -> None:
    alice.does(add_ten)
    queued = bob.starts(locks(Order, 1))
    wait_until_queued(gate, queued)
    alice.does(end)
    assert queued.result().id == 1
    bob.does(roll_back)
    assert queues_of(gate).documents == {}


def test_by_a_lock_that_finds_no_row(gate: DocumentGate, session: Session) -> None:
    assert session.get_entity(Order, 99, ForUpdate) is None
    assert queues_of(gate).documents == {}


def test_for_the_rows_that_are_missing(gate: DocumentGate, session: Session) -> None:
    kept = session.get_entities(Order, [1, 99], ForUpdate)
    assert len(queues_of(gate).documents) == 1
    session.rollback()
    assert queues_of(gate).documents == {}
    del kept


def test_by_a_lock_that_fails(
    gate: DocumentGate, session: Session, dave: Callable[..., Player], past_the_gate: Any
) -> None:
    dave(past_the_gate).does(locks(Order, 1))
    with pytest.raises(LockNotAvailable):
        session.get_entity(Order, 1, ForUpdate, lock_timeout=0.05)
    assert queues_of(gate).documents == {}


@pytest.mark.not_databases("sqlite")
def test_with_the_savepoint_that_it_was_taken_in(gate: DocumentGate, session: Session) -> None:
    with session.begin():
        savepoint = session.begin_nested()
        kept = session.get_entity(Order, 1, ForUpdate)
        assert len(queues_of(gate).documents) == 1
        savepoint.rollback()
        assert not session.held_locks
        assert queues_of(gate).documents == {}
    del kept


def test_but_not_with_a_later_one(gate: DocumentGate, session: Session) -> None:
    kept = session.get_entity(Order, 1, ForUpdate)
    session.begin_nested().rollback()
    assert session.held_locks
    assert len(queues_of(gate).documents) == 1
    session.rollback()
    assert queues_of(gate).documents == {}
    del kept


def test_by_a_session_that_nobody_closes(
    gate: DocumentGate, engine: sa.Engine, alice: Player
) -> None:
    forgotten = LockingSession(engine, gate=gate)
    forgotten.get_entity(Order, 1, ForUpdate)
    gone = weakref.ref(forgotten)
    queued = alice.starts(locks(Order, 1))
    wait_until_queued(gate, queued)
    del forgotten
    gc.collect()
    assert gone() is None
    assert queued.result().id == 1


def test_in_the_midst_of_a_garbage_collection(gate: DocumentGate) -> None:
    # This may happen at any moment, even while this thread is inside the gate.
    first, second = (QueueEntry(1, shared=False, next_may_follow=False) for _ in range(2))
    assert enter(gate, first, seconds=0, under_asyncio=False)

    @under_mutex
    def collected(queues: CombinedCommits) -> None:
        queues.leave([first])
        assert queues.documents

    collected(queues_of(gate))
    assert queues_of(gate).documents == {}
    enter(gate, second, seconds=0, under_asyncio=False)
    queues_of(gate).leave([second])
    assert gate.waiting == 0
    assert queues_of(gate).documents == {}


def test_a_thread_that_is_interrupted_leaves_the_line(
    gate: DocumentGate, monkeypatch: pytest.MonkeyPatch, session: Session, alice: Player
) -> None:
    class Wakeup:
        def wait(self, seconds: float | None) -> None:
            raise KeyboardInterrupt

    alice.does(locks(Order, 1))
    monkeypatch.setattr("sa_doclock.features.gate.queue.Wakeup", Wakeup)
    with pytest.raises(KeyboardInterrupt):
        session.get_entity(Order, 1, ForUpdate)
    assert not session.in_transaction()
    assert gate.waiting == 0
    alice.does(roll_back)
    assert queues_of(gate).documents == {}


@pytest.mark.parametrize("ended", [False, True], ids=["taken", "given up"])
def test_by_a_session_that_is_interrupted_at_any_line(
    gate: DocumentGate, session: Session, ended: bool
) -> None:
    def lock() -> None:
        session.get_entity(Order, 1, ForUpdate)
        if ended:
            session.rollback()

    ctrl_c = CtrlC("sa_doclock.features.gate.session_queue")
    while ctrl_c.during(lock):
        session.rollback()
        assert queues_of(gate).documents == {}, ctrl_c.raised


def test_what_many_threads_do_at_once_leaves_nothing(gate: DocumentGate) -> None:
    inside, most = [], []

    def come_and_go() -> None:
        for number in range(200):
            place = QueueEntry(number % 3, shared=False, next_may_follow=False)
            assert enter(gate, place, seconds=None, under_asyncio=False)
            inside.append(place.key)
            most.append(inside.count(place.key))
            inside.remove(place.key)
            queues_of(gate).note_granted([place])
            queues_of(gate).leave([place])

    threads = [threading.Thread(target=come_and_go) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert (gate.waiting, queues_of(gate).documents) == (0, {})


# --------------------------------------------------------------------------------------------------
# Wrong values for a gate, and wrong arguments to one, are rejected.


@pytest.mark.parametrize("wrong", [True, "gate", DocumentGate])
def test_what_is_no_gate_is_refused(wrong: Any) -> None:
    for kind in (LockingSession, AsyncLockingSession):
        with pytest.raises(TypeError, match="gate must be a DocumentGate"):
            kind(gate=wrong)


def test_none_is_no_gate(gate: DocumentGate) -> None:
    assert not LockingSession(gate=None)._context.parts.around_take
    assert LockingSession(gate=gate)._context.parts.around_take


def test_so_is_what_is_no_option() -> None:
    wrong: Any = 1
    with pytest.raises(TypeError, match="next_waits_at_server must be True or False, not 1"):
        DocumentGate(next_waits_at_server=wrong)
    with pytest.raises(ValueError, match='second_session must be "refuse" or "allow", not 1'):
        DocumentGate(second_session=wrong)
