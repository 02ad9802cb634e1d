"""The COMMIT itself fails: repeated, unless another database may have committed already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import DeadlockDetected, LockingSession, LockNotAvailable, run_transaction
from sa_doclock import LockOptions as Lock
from tests.integration.locking.connections import set_patience
from tests.integration.retry.counting import Counted, Session, deadlocks, own_logic
from tests.support.models import Base, Customer, Order

Factory = sessionmaker[LockingSession]
Run = Callable[..., list[Any]]

TOTAL = sa.select(Order.total).where(Order.id == 1)


@pytest.fixture
def two_databases(session_factory: Factory, tmp_path: Path) -> Iterator[Factory]:
    """Let customers be in a file of their own."""
    second = sa.create_engine(f"sqlite:///{tmp_path}/second.db")
    Base.metadata.create_all(second)
    bind = session_factory.kw["bind"]
    yield sessionmaker(bind, class_=LockingSession, binds={Customer: second})
    second.dispose()


def not_let_through(factory: Factory, reader: Session) -> Counted:
    """Make a function whose transaction SQLite cannot commit the first time: somebody reads."""

    def act(session: Session) -> None:
        session.get_one_entity(Order, 1, Lock.ForUpdate).total += 1
        session.execute(sa.update(Customer).values(name="mine"))
        if fn.runs == 1:
            reader.get_one_entity(Order, 2, Lock.SharedRead)
        else:
            reader.release_locks()

    set_patience(factory.kw["bind"], 0)
    fn = Counted(act=act)
    return fn


@pytest.mark.databases("sqlite-journal")
def test_a_commit_that_the_database_refuses_is_repeated(
    session_factory: Factory, other: Session, elsewhere: Run
) -> None:
    fn = not_let_through(session_factory, other)
    assert run_transaction(session_factory, fn, retry_not_available=True) == 2
    assert elsewhere(TOTAL) == [(31,)]


@pytest.mark.databases("sqlite-journal")
def test_not_so_where_another_database_may_have_committed(
    two_databases: Factory, other: Session
) -> None:
    fn = not_let_through(two_databases, other)
    with pytest.raises(LockNotAvailable) as caught:
        run_transaction(two_databases, fn, retry_not_available=True)
    assert fn.runs == 1
    assert caught.value.attempts == 0
    other.release_locks()


def both(session: Session) -> None:
    session.get(Order, 1)
    session.get(Customer, 1)


def of_commit() -> DeadlockDetected:
    return DeadlockDetected("at COMMIT", orig=OSError("1213"))


@own_logic
def test_a_deadlock_before_the_commit_is_repeated_with_two_databases(
    two_databases: Factory,
) -> None:
    in_statement = DeadlockDetected("no", statement="UPDATE", orig=OSError("1213"))
    fn = Counted(in_statement, *deadlocks(1), act=both)
    assert run_transaction(two_databases, fn) == 3


@own_logic
def test_one_of_the_commit_of_the_only_database_is_repeated(two_databases: Factory) -> None:
    fn = Counted(of_commit(), act=lambda session: session.get(Order, 1))
    assert run_transaction(two_databases, fn) == 2


@own_logic
def test_one_of_a_commit_in_two_phases_is_repeated(two_databases: Factory) -> None:
    def act(session: Session) -> None:
        both(session)
        session.twophase = fn.runs == 1  # as if made so; SQLite has no PREPARE for the rest of it

    fn = Counted(of_commit(), act=act)
    assert run_transaction(two_databases, fn) == 2


@own_logic
def test_one_of_the_commit_where_one_can(two_databases: Factory) -> None:
    fn = Counted(of_commit(), act=both)
    with pytest.raises(DeadlockDetected):
        run_transaction(two_databases, fn)
    assert fn.runs == 1
