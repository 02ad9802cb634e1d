"""Functions of on_commit() run once for the attempt that is committed, never for another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import sessionmaker

from sa_doclock import DeadlockDetected, LockingSession, run_transaction
from tests.integration.on_commit.promises import Promises
from tests.integration.retry.counting import NAMES, Counted, Session, deadlocks, own_logic, rename

Factory = sessionmaker[LockingSession]
Run = Callable[..., list[Any]]


@pytest.fixture
def promises() -> Promises:
    return Promises()


@own_logic
def test_it_is_kept_once_by_the_attempt_that_works(
    session_factory: Factory, promises: Promises
) -> None:
    fn = Counted(
        *deadlocks(2), act=lambda session: session.on_commit(promises.note(f"run {fn.runs}"))
    )
    run_transaction(session_factory, fn)
    assert promises.kept == ["run 3"]


@own_logic
def test_it_is_never_kept_when_all_have_failed(
    session_factory: Factory, promises: Promises
) -> None:
    fn = Counted(*deadlocks(2), act=lambda session: session.on_commit(promises.note()))
    with pytest.raises(DeadlockDetected):
        run_transaction(session_factory, fn, attempts=2)
    assert promises.kept == []


@own_logic
def test_a_deadlock_that_it_meets_itself_repeats_nothing(
    session_factory: Factory, elsewhere: Run, promises: Promises
) -> None:
    (error,) = deadlocks(1)

    def act(session: Session) -> None:
        rename(session, f"run {fn.runs}")
        session.on_commit(promises.fail(error))

    fn = Counted(act=act)
    with pytest.raises(DeadlockDetected) as caught:
        run_transaction(session_factory, fn)
    assert caught.value is error
    assert caught.value.attempts == 0
    assert promises.kept == [str(error)]
    assert fn.runs == 1
    assert elsewhere(NAMES)[0] == (1, "run 1")


@own_logic
def test_nor_does_one_of_a_listener_after_the_commit(
    session_factory: Factory, elsewhere: Run
) -> None:
    def fail(_: Session) -> None:
        raise DeadlockDetected("in a listener")

    event.listen(session_factory, "after_commit", fail)
    fn = Counted(act=lambda session: rename(session, "mine"))
    with pytest.raises(DeadlockDetected, match="in a listener"):
        run_transaction(session_factory, fn)
    assert fn.runs == 1
    assert elsewhere(NAMES)[0] == (1, "mine")


@own_logic
def test_one_of_a_listener_before_the_commit_is_repeated(
    session_factory: Factory, elsewhere: Run
) -> None:
    def fail(_: Session) -> None:
        if fn.runs == 1:
            raise DeadlockDetected("in a listener")

    event.listen(session_factory, "before_commit", fail)
    fn = Counted(act=lambda session: rename(session, f"run {fn.runs}"))
    assert run_transaction(session_factory, fn) == 2
    assert elsewhere(NAMES)[0] == (1, "run 2")


@own_logic
def test_it_may_run_a_transaction_of_its_own(session_factory: Factory, elsewhere: Run) -> None:
    inner = Counted(*deadlocks(1), act=lambda session: rename(session, "inner"))

    def outer(session: Session) -> None:
        session.execute(sa.text("UPDATE lk_customer SET name = 'outer'"))
        session.on_commit(lambda: run_transaction(session_factory, inner))

    run_transaction(session_factory, outer)
    assert inner.runs == 2
    assert elsewhere(NAMES) == [(1, "inner"), (2, "outer")]
