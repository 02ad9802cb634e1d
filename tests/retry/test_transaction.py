"""Whose transaction it is, and what becomes of it when the function meddles with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, InvalidRequestError, PendingRollbackError
from sqlalchemy.orm import SessionTransactionOrigin, sessionmaker
from sqlalchemy.orm.exc import DetachedInstanceError

from sa_doclock import DeadlockDetected, LockingSession, LockNotAvailable, run_transaction
from sa_doclock import LockOptions as Lock
from tests.locks.connections import set_patience
from tests.models import Base, Customer, Order
from tests.retry.counting import NAMES, Counted, Session, deadlocks, own_logic, rename

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
    assert caught.value.attempts is None
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


# SQLITE_BUSY at COMMIT, because somebody reads: the one commit that fails in the same way each time.


def not_let_through(
    session_factory: Factory, other: Session, *, attempts: int, **factory: Any
) -> Counted:
    """Run a transaction whose commit fails in its first attempt, and in no other."""
    set_patience(session_factory.kw["bind"], 0)
    session_factory.configure(**factory)

    def act(session: Session) -> None:
        session.get_one_entity(Order, 1, Lock.ForUpdate).total += 1
        session.execute(sa.update(Customer).values(name="mine"))
        if fn.runs == 1:
            other.get_one_entity(Order, 2, Lock.SharedRead)
        else:
            other.release_locks()

    fn = Counted(act=act)
    run_transaction(session_factory, fn, attempts=attempts, retry_not_available=True)
    return fn


@pytest.mark.databases("sqlite-journal")
def test_a_commit_that_is_refused_is_repeated(
    session_factory: Factory, other: Session, elsewhere: Run
) -> None:
    fn = not_let_through(session_factory, other, attempts=2)
    assert fn.runs == 2
    assert elsewhere(sa.select(Order.total).where(Order.id == 1)) == [(31,)]


@pytest.mark.databases("sqlite-journal")
def test_not_so_where_another_database_may_have_committed(
    session_factory: Factory, other: Session, tmp_path: Any
) -> None:
    second = sa.create_engine(f"sqlite:///{tmp_path}/second.db")
    Base.metadata.create_all(second)
    with pytest.raises(LockNotAvailable) as caught:
        not_let_through(session_factory, other, attempts=2, binds={Customer: second})
    assert caught.value.attempts is None
    other.release_locks()
    second.dispose()
