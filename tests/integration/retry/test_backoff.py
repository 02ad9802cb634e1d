"""The waits: a random part of a time that doubles up to a limit.  Nobody sleeps here."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.orm import sessionmaker

from sa_doclock import DeadlockDetected, LockingSession, run_transaction
from tests.integration.retry.counting import Counted, deadlocks

factory = sessionmaker(class_=LockingSession)  # nothing is sent, so no database is needed


def waits(naps: list[float], attempts: int, backoff: float, max_backoff: float) -> list[float]:
    """Let all attempts fail; return the waits between them."""
    naps.clear()
    fn = Counted(*deadlocks(attempts))
    with pytest.raises(DeadlockDetected):
        run_transaction(factory, fn, attempts=attempts, backoff=backoff, max_backoff=max_backoff)
    assert fn.runs == attempts
    return list(naps)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    attempts=st.integers(1, 8),
    backoff=st.floats(0, 10),
    max_backoff=st.floats(0, 30),
    seed=st.integers(0, 1000),
)
def test_each_wait_is_within_its_bound(
    naps: list[float], attempts: int, backoff: float, max_backoff: float, seed: int
) -> None:
    random.seed(seed)
    waited = waits(naps, attempts, backoff, max_backoff)
    assert len(waited) == attempts - 1
    for number, seconds in enumerate(waited):
        assert 0 <= seconds <= min(backoff * 2**number, max_backoff)


def test_it_grows_and_is_spread_over_all_of_it(naps: list[float]) -> None:
    random.seed(1)
    rounds = [waits(naps, 5, 1.0, 4.0) for _ in range(200)]
    for number, bound in enumerate([1.0, 2.0, 4.0, 4.0]):
        seconds = sorted(waited[number] for waited in rounds)
        assert seconds[0] < bound * 0.1  # full jitter: also next to nothing
        assert bound * 0.9 < seconds[-1] <= bound
        assert bound * 0.4 < sum(seconds) / len(seconds) < bound * 0.6


def test_zero_is_no_wait(naps: list[float]) -> None:
    assert waits(naps, 4, 0, 2.0) == waits(naps, 4, 0.05, 0) == [0, 0, 0]


def test_by_default_a_deadlock_costs_a_twentieth_of_a_second_at_most(
    naps: list[float],
) -> None:
    for _ in range(50):
        run_transaction(factory, Counted(*deadlocks(1)))
    assert max(naps) <= 0.05
    assert min(naps) < max(naps)


def test_many_attempts_do_not_overflow(naps: list[float]) -> None:
    assert max(waits(naps, 1100, 0.05, 2.0)) <= 2.0
