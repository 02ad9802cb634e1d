"""The owner of the transaction, and its end when the function meddles with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, InvalidRequestError, PendingRollbackError
from sqlalchemy.orm import SessionTransactionOrigin, sessionmaker
from sqlalchemy.orm.exc import DetachedInstanceError

from sa_doclock import DeadlockDetected, LockingSession, run_transaction
from sa_doclock import LockOptions as Lock
from tests.integration.retry.counting import NAMES, Counted, Session, deadlocks, own_logic, rename
from tests.support.models import Customer, Order

Factory = sessionmaker[LockingSession]
Run = Callable[..., list[Any]]


@own_logic
def test_it_is_opened_and_committed_around_the_function(
    session_factory: Factory, elsewhere: Run
) -> None:
    def work(session: Session) -> str:
        transaction = session.get_transaction()
        assert transaction is not None
        assert transaction.origin is SessionTransactionOrigin.BEGIN
        session.get_one_entity(Order, 1, Lock.ForUpdate).total = 31
        session.save_changes()
        assert session.get_transaction() is transaction
        assert session.held_locks
        with session.locked(Order, 2) as order:
            order.total = 6
        assert session.in_transaction()
        sessions.append(session)
        return "done"

    sessions: list[Session] = []
    assert run_transaction(session_factory, work) == "done"
    assert elsewhere(sa.select(Order.total).order_by(Order.id)) == [(31,), (6,)]
    assert not sessions[0].in_transaction()
    assert not sessions[0].held_locks


@own_logic
def test_a_savepoint_that_was_left_open_is_committed_too(
    session_factory: Factory, elsewhere: Run
) -> None:
    def work(session: Session) -> None:
        session.begin_nested()
        rename(session, "mine")

    run_transaction(session_factory, work)
    assert elsewhere(NAMES)[0] == (1, "mine")


@own_logic
def test_a_failed_flush_that_was_swallowed_is_not_taken_for_success(
    session_factory: Factory, elsewhere: Run
) -> None:
    def act(session: Session) -> None:
        rename(session, "never")
        session.add(Customer(id=2, name="there already"))
        with pytest.raises(IntegrityError):
            session.flush()

    fn = Counted(act=act)
    with pytest.raises(PendingRollbackError) as caught:
        run_transaction(session_factory, fn)
    assert isinstance(caught.value.__cause__, IntegrityError)
    assert fn.runs == 1
    assert elsewhere(NAMES)[0] == (1, "Ann")


@own_logic
def test_after_its_own_commit_nothing_more_can_be_done(
    session_factory: Factory, elsewhere: Run
) -> None:
    def act(session: Session) -> None:
        rename(session, "mine")
        session.commit()
        session.get(Customer, 2)

    fn = Counted(act=act)
    with pytest.raises(InvalidRequestError, match="closed transaction inside context manager"):
        run_transaction(session_factory, fn)
    assert fn.runs == 1
    assert elsewhere(NAMES)[0] == (1, "mine")


@own_logic
def test_what_it_has_committed_itself_is_not_committed_twice(
    session_factory: Factory, elsewhere: Run
) -> None:
    def act(session: Session) -> None:
        session.get_one_entity(Order, 1, Lock.ForUpdate).total += 1
        session.commit()

    fn = Counted(*deadlocks(1), act=act)  # as of another session
    with pytest.raises(DeadlockDetected) as caught:
        run_transaction(session_factory, fn)
    assert fn.runs == 1
    assert caught.value.attempts == 0
    assert run_transaction(session_factory, fn) == 2
    assert elsewhere(sa.select(Order.total).where(Order.id == 1)) == [(32,)]


@own_logic
def test_what_it_has_rolled_back_itself_is_not_committed(
    session_factory: Factory, elsewhere: Run
) -> None:
    def act(session: Session) -> None:
        rename(session, "never")
        session.rollback()

    fn = Counted(act=act)
    assert run_transaction(session_factory, fn) == 1
    assert elsewhere(NAMES)[0] == (1, "Ann")


@own_logic
def test_a_deadlock_is_repeated_also_where_it_has_rolled_back_first(
    session_factory: Factory,
) -> None:
    fn = Counted(*deadlocks(1), act=Session.rollback)
    assert run_transaction(session_factory, fn) == 2


@own_logic
def test_an_entity_that_it_returns_is_detached_and_expired(session_factory: Factory) -> None:
    order = run_transaction(session_factory, lambda session: session.get_one(Order, 1))
    with pytest.raises(DetachedInstanceError):
        _ = order.total
    session_factory.configure(expire_on_commit=False)
    order = run_transaction(session_factory, lambda session: session.get_one(Order, 1))
    assert order.total == 30
