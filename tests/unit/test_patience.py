"""The lock timeout of a session: of the call, else of the session, else of nobody."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.orm import sessionmaker

from sa_doclock import AsyncLockingSession, LockingSession, LockNotAvailable, LockOptions
from sa_doclock.core.session import context_of
from sa_doclock.core.session_options import SessionOptions
from sa_doclock.features.batch import retry_without_queueing
from sa_doclock.options import BATCH_WAIT, base_of, is_row_lock, may_queue
from tests.support.models import Order
from tests.support.rows import rows
from tests.unit.test_lock_options import LEGAL
from tests.unit.test_lock_timeout import NO_NUMBERS, NO_WAITS

FOR_UPDATE, SHARED = LockOptions.ForUpdate, LockOptions.SharedRead
NO_WAIT = LockOptions.NoWait


def test_three_locks_may_have_to_queue() -> None:
    assert [lock for lock in LEGAL if may_queue(lock)] == [
        lock for lock in LEGAL if lock in (FOR_UPDATE, SHARED, FOR_UPDATE | LockOptions.NoKey)
    ]
    assert all(is_row_lock(lock) for lock in LEGAL if may_queue(lock))


#: lock_timeout of the session, its priority, that of the call: the lock, the seconds.
TABLE: dict[str, tuple[Any, Any, Any, tuple[LockOptions, float | None]]] = {
    "nobody says anything": (None, "interactive", None, (FOR_UPDATE, None)),
    "the session does": (1.5, "interactive", None, (FOR_UPDATE, 1.5)),
    "a timedelta": (timedelta(seconds=2), "interactive", None, (FOR_UPDATE, 2.0)),
    "the session does not wait": (0, "interactive", None, (FOR_UPDATE | NO_WAIT, None)),
    "the call says more": (1.5, "interactive", 2.5, (FOR_UPDATE, 2.5)),
    "the call says less": (1.5, "interactive", 0.5, (FOR_UPDATE, 0.5)),
    "the call does not wait": (1.5, "interactive", 0, (FOR_UPDATE | NO_WAIT, None)),
    "the call waits all the same": (0, "interactive", 3, (FOR_UPDATE, 3.0)),
    "a batch": (None, "batch", None, (FOR_UPDATE, BATCH_WAIT)),
    "a batch with a limit": (1.5, "batch", None, (FOR_UPDATE, 1.5)),
    "a batch whose call has one": (1.5, "batch", 90, (FOR_UPDATE, 90.0)),
    "a batch that does not wait": (0, "batch", None, (FOR_UPDATE | NO_WAIT, None)),
    "a batch whose call does not": (None, "batch", 0, (FOR_UPDATE | NO_WAIT, None)),
}


@rows(("session", "priority", "call", "wanted"), TABLE.values(), ids=TABLE)
def test_who_counts_more(session: Any, priority: Any, call: Any, wanted: Any) -> None:
    made = LockingSession(lock_timeout=session, priority=priority)
    assert context_of(made).options.resolve(FOR_UPDATE, call) == wanted


@rows("lock", [lock for lock in LEGAL if not may_queue(lock)], ids=str)
def test_what_never_queues_has_no_limit(lock: LockOptions) -> None:
    for seconds in (None, 0, 1.5):
        assert SessionOptions({}, seconds).resolve(lock, None) == (lock, None)


def test_true_is_no_time_though_it_equals_one() -> None:
    wait: Any = SessionOptions({})
    assert wait.resolve(FOR_UPDATE, 1) == (FOR_UPDATE, 1.0)
    with pytest.raises(TypeError, match="True"):
        wait.resolve(FOR_UPDATE, True)


@given(st.sampled_from(LEGAL), st.one_of(st.none(), st.floats(0, 1e6)))
def test_the_base_of_a_lock_stays(lock: LockOptions, seconds: float | None) -> None:
    chosen, left = SessionOptions({}, seconds).resolve(lock, None)
    assert base_of(chosen) is base_of(lock)
    assert (left is None) or left > 0


@pytest.mark.parametrize("value", NO_WAITS.values(), ids=NO_WAITS)
def test_a_session_refuses_what_is_no_wait(value: Any) -> None:
    for make in (LockingSession, AsyncLockingSession, sessionmaker(class_=LockingSession)):
        with pytest.raises(ValueError, match="lock_timeout must be zero or more seconds"):
            make(lock_timeout=value)


@pytest.mark.parametrize("value", NO_NUMBERS.values(), ids=NO_NUMBERS)
def test_a_session_refuses_what_is_no_number(value: Any) -> None:
    for make in (LockingSession, AsyncLockingSession, sessionmaker(class_=LockingSession)):
        with pytest.raises(TypeError, match="lock_timeout must be seconds, a timedelta or None"):
            make(lock_timeout=value)


WAYS: dict[str, Any] = {
    "get_one_entity": lambda session, value: session.get_one_entity(
        Order, 1, FOR_UPDATE, lock_timeout=value
    ),
    "get_entities": lambda session, value: session.get_entities(
        Order, [1], FOR_UPDATE, lock_timeout=value
    ),
    "get_document": lambda session, value: session.get_document(
        Order, 1, FOR_UPDATE, lock_timeout=value
    ),
    "get_documents": lambda session, value: session.get_documents(
        Order, [1], FOR_UPDATE, lock_timeout=value
    ),
    "locked": lambda session, value: session.locked(Order, 1, lock_timeout=value).__enter__(),
    "entity_set": lambda session, value: session.entity_set(Order, FOR_UPDATE, lock_timeout=value),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_so_does_every_way_to_lock(session: LockingSession, sent: list[str], way: Any) -> None:
    for value in NO_WAITS.values():
        with pytest.raises(ValueError, match="lock_timeout"):
            way(session, value)
    for value in NO_NUMBERS.values():
        with pytest.raises(TypeError, match="lock_timeout must be seconds"):
            way(session, value)
    assert sent == []


@pytest.mark.parametrize(
    "lock",
    [LockOptions.None_, LockOptions.NoLock, LockOptions.SnapshotRead],
    ids=str,
)
def test_a_set_that_never_waits_takes_none(session: LockingSession, lock: LockOptions) -> None:
    for value in (0, 0.5, timedelta(1)):
        with pytest.raises(ValueError, match="never waits"):
            session.entity_set(Order, lock, lock_timeout=value)
    with pytest.raises(ValueError, match="collide"):
        session.entity_set(Order, FOR_UPDATE | NO_WAIT, lock_timeout=0.5)
    with pytest.raises(TypeError, match="lock must be a LockOptions"):
        session.entity_set(Order, True, lock_timeout=0.5)  # type: ignore[call-overload]
    assert math.isfinite(BATCH_WAIT)


def no_pause(seconds: float) -> None:
    pytest.fail(f"it has paused for {seconds} s")


def test_a_batch_tries_again_and_repeats_nothing_else() -> None:
    asked: list[Any] = []
    pauses: list[float] = []

    def attempt(left: float) -> str:
        asked.append(left)
        if len(asked) < 4:
            raise LockNotAvailable("held")
        return "granted"

    assert retry_without_queueing(60, attempt, pauses.append) == "granted"
    assert asked == [60] * 4  # whole seconds, for a table that somebody alters
    assert len(pauses) == 3
    assert all(0 <= pause <= 0.5 for pause in pauses)

    def fail(_: float) -> None:
        asked.append("failed")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        retry_without_queueing(60, fail, no_pause)
    assert asked.count("failed") == 1
