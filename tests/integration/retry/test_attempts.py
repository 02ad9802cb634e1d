"""Attempts continue until one succeeds or none are left, and never after another error."""

from __future__ import annotations

import logging
import pickle
import random
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import IntegrityError, OperationalError, PendingRollbackError
from sqlalchemy.orm import sessionmaker
from sqlalchemy.orm.exc import StaleDataError

from sa_doclock import (
    DeadlockDetected,
    LockingSession,
    LockMisuse,
    LockNotAvailable,
    LockOptions,
    SnapshotConflict,
    UnlockedWrite,
    run_transaction,
)
from sa_doclock import LockOptions as Lock
from tests.integration.locking.steps import finds_held
from tests.integration.retry.counting import NAMES, Counted, Session, deadlocks, own_logic, rename
from tests.support.models import Customer, Order, Voucher

pytestmark = pytest.mark.quick


Factory = sessionmaker[LockingSession]
Run = Callable[..., list[Any]]

NO_WAIT = LockOptions.ForUpdate | LockOptions.NoWait


@own_logic
@pytest.mark.parametrize("error", [DeadlockDetected("no"), SnapshotConflict("no")])
def test_it_is_run_until_it_works(
    session_factory: Factory, elsewhere: Run, naps: list[float], error: Exception
) -> None:
    fn = Counted(error, error, act=lambda session: rename(session, f"run {fn.runs}"))
    assert run_transaction(session_factory, fn) == 3
    assert len(set(map(id, fn.sessions))) == 3
    assert len(naps) == 2
    assert elsewhere(NAMES)[0] == (1, "run 3")


@own_logic
def test_the_last_error_comes_out_itself_with_the_count(
    session_factory: Factory, elsewhere: Run, naps: list[float]
) -> None:
    errors = deadlocks(9)
    fn = Counted(*errors, act=lambda session: rename(session, "never"))
    with pytest.raises(DeadlockDetected) as caught:
        run_transaction(session_factory, fn, attempts=3)
    assert caught.value is errors[2]
    assert caught.value.attempts == 3
    assert caught.value.args[0] == "made up, 2 (given up after 3 attempts)"
    assert pickle.loads(pickle.dumps(caught.value)).attempts == 3
    assert errors[1].attempts == 0
    assert (fn.runs, len(naps)) == (3, 2)
    assert elsewhere(NAMES)[0] == (1, "Ann")


@own_logic
def test_there_are_five_attempts(session_factory: Factory) -> None:
    fn = Counted(*deadlocks(9))
    with pytest.raises(DeadlockDetected, match="given up after 5 attempts"):
        run_transaction(session_factory, fn)
    assert fn.runs == 5


def lock_order(session: Session) -> None:
    rename(session, "never")
    session.get_one_entity(Order, 1, NO_WAIT)


@pytest.mark.read_committed
@pytest.mark.not_databases("sqlite")
def test_the_pool_is_as_before_when_it_gives_up(
    make_engine: Callable[..., sa.Engine],
    read_committed: dict[str, Any],
    other: Session,
    elsewhere: Run,
) -> None:
    engine = make_engine(pool_size=1, max_overflow=0, pool_timeout=1, **read_committed)
    factory = sessionmaker(engine, class_=LockingSession)
    other.get_one_entity(Order, 1, LockOptions.ForUpdate)
    fn = Counted(act=lock_order)
    with pytest.raises(
        LockNotAvailable, match=r"^Order 1 FOR UPDATE NOWAIT .*after 3 att"
    ) as caught:
        run_transaction(factory, fn, attempts=3, retry_not_available=True)
    assert caught.value.attempts == fn.runs == 3
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    assert not any(session.held_locks for session in fn.sessions)
    assert not finds_held(Customer)(other)  # and other releases order 1
    assert run_transaction(factory, fn) == 4
    assert elsewhere(NAMES)[0] == (1, "never")


@own_logic
def test_a_lock_that_is_not_available_is_not_asked_for_again(session_factory: Factory) -> None:
    fn = Counted(LockNotAvailable("held"))
    with pytest.raises(LockNotAvailable) as caught:
        run_transaction(session_factory, fn)
    assert fn.runs == 1
    assert caught.value.attempts == 0
    assert caught.value.args[0] == "held"


OTHERS = [
    UnlockedWrite("no"),
    LockMisuse("no"),
    IntegrityError("INSERT", {}, Exception("no")),
    OperationalError("COMMIT", {}, Exception("gone away"), connection_invalidated=True),
    StaleDataError("no"),
    PendingRollbackError("no"),
    LookupError("no"),
    KeyboardInterrupt(),
    SystemExit(),
]


@own_logic
@pytest.mark.parametrize("error", OTHERS, ids=lambda error: type(error).__name__)
def test_no_other_error_is_repeated(
    session_factory: Factory, elsewhere: Run, naps: list[float], error: BaseException
) -> None:
    said = str(error)
    fn = Counted(error, act=lambda session: rename(session, "never"))
    with pytest.raises(type(error)) as caught:
        run_transaction(session_factory, fn, retry_not_available=True)
    assert caught.value is error
    assert str(error) == said
    assert (fn.runs, naps) == (1, [])
    assert not fn.sessions[0].in_transaction()
    assert elsewhere(NAMES)[0] == (1, "Ann")


@own_logic
def test_an_interrupt_between_two_attempts_comes_out(
    session_factory: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: float) -> None:
        assert not fn.sessions[0].in_transaction()  # nothing is held while it waits
        raise KeyboardInterrupt

    monkeypatch.setattr("tenacity.nap.time.sleep", interrupt)
    fn = Counted(*deadlocks(1))
    with pytest.raises(KeyboardInterrupt):
        run_transaction(session_factory, fn)
    assert fn.runs == 1


@own_logic
def test_what_the_rollback_meets_does_not_hide_the_deadlock(
    session_factory: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        met.append("rollback")
        raise OSError("no more server")

    def break_rollback(session: Session) -> None:
        dialect = session.connection().dialect
        monkeypatch.setattr(dialect, "do_rollback", fail)

    met: list[str] = []
    fn = Counted(*deadlocks(2), act=break_rollback)
    with pytest.raises(DeadlockDetected, match="made up, 1"):
        run_transaction(session_factory, fn, attempts=2)
    assert fn.runs == 2
    assert met


@own_logic
def test_an_error_of_the_factory_comes_out_in_any_attempt(session_factory: Factory) -> None:
    def make() -> Session:
        if fn.runs:
            raise LookupError("no session for you")
        return session_factory()

    fn = Counted(*deadlocks(9))
    with pytest.raises(LookupError, match="no session for you"):
        run_transaction(make, fn)
    assert fn.runs == 1


# --------------------------------------------------------------------------------------------------
# The waits: a random part of a time that doubles up to a limit.  The tests do not sleep.

factory = sessionmaker(class_=LockingSession)  # no statement is sent, so no database is needed


def waits(naps: list[float], attempts: int, backoff: float, max_backoff: float) -> list[float]:
    """Let all attempts fail; return the pauses between them."""
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
        assert seconds[0] < bound * 0.1  # full jitter: pauses can be near zero too
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


# --------------------------------------------------------------------------------------------------
# The log records each failed attempt, with its document.

FIELDS = ("document", "lock", "waited", "held", "outcome", "attempt", "attempts")


LEVELS = {"retried": logging.INFO, "given up": logging.WARNING}


@pytest.fixture
def from_info_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sa_doclock")


def records_of(caplog: pytest.LogCaptureFixture) -> list[tuple[Any, ...]]:
    of_retries = [record for record in caplog.records if hasattr(record, "attempt")]
    for record in of_retries:
        level = LEVELS[vars(record)["outcome"]]
        assert (record.name, record.levelno) == ("sa_doclock", level)
    return [tuple(vars(record)[name] for name in FIELDS) for record in of_retries]


@pytest.mark.usefixtures("from_info_on")
def test_every_attempt_that_is_repeated(caplog: pytest.LogCaptureFixture) -> None:
    one = DeadlockDetected("no", entity=Order, ident=42, lock=Lock.ForUpdate | Lock.NoWait)
    two = DeadlockDetected("no", entity=Voucher, ident=(2024, 1))
    run_transaction(factory, Counted(one, two, *deadlocks(1)))
    assert records_of(caplog) == [
        ("Order 42", "FOR UPDATE NOWAIT", None, None, "retried", 1, 5),
        ("Voucher (2024, 1)", None, None, None, "retried", 2, 5),
        (None, None, None, None, "retried", 3, 5),
    ]
    first = caplog.messages[0]
    assert first.startswith("run_transaction: attempt 1 of 5 failed, the next in 0.0")
    assert first.endswith(" s: no")


@pytest.mark.usefixtures("from_info_on")
def test_the_one_after_which_it_gives_up(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DeadlockDetected):
        run_transaction(factory, Counted(*deadlocks(2)), attempts=2)
    assert [one[4:] for one in records_of(caplog)] == [("retried", 1, 2), ("given up", 2, 2)]
    assert caplog.messages[1] == "run_transaction: given up after 2 attempts: made up, 1"


@pytest.mark.usefixtures("from_info_on")
def test_nothing_where_nothing_is_repeated(caplog: pytest.LogCaptureFixture) -> None:
    run_transaction(factory, Counted())
    for error in (LookupError("no"), LockNotAvailable("held")):
        with pytest.raises(type(error)):
            run_transaction(factory, Counted(error))
    assert caplog.records == []


@pytest.mark.usefixtures("from_info_on")
@pytest.mark.read_committed
@pytest.mark.databases("postgresql")
def test_the_document_of_a_real_lock(
    session_factory: Callable[[], Session], other: Session, caplog: pytest.LogCaptureFixture
) -> None:
    def lock(session: Session) -> None:
        if fn.runs == 2:
            other.rollback()
        session.get_entity(Order, 1, Lock.ForUpdate, lock_timeout=0)

    other.execute(sa.update(Order).values(total=0))
    fn = Counted(act=lock)
    run_transaction(session_factory, fn, retry_not_available=True)
    ((document, lock_taken, waited, held, outcome, *_),) = records_of(caplog)
    assert (document, lock_taken, held, outcome) == (
        "Order 1",
        "FOR UPDATE NOWAIT",
        None,
        "retried",
    )
    assert waited > 0
