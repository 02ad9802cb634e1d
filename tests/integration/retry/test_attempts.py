"""Attempts go on until one works, until they are used up, and never after any other error."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
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
from tests.integration.locking.steps import finds_held
from tests.integration.retry.counting import NAMES, Counted, Session, deadlocks, own_logic, rename
from tests.support.models import Customer, Order

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
    assert not finds_held(Customer)(other)  # and other gives order 1 up
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
