"""Several sessions that were given one Connection: the errors of each are its own, and typed."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import PendingRollbackError, SAWarning

from sa_doclock import DeadlockDetected, LockingSession, LockNotAvailable, LockOptions
from tests.integration.locking.crosswise import set_total
from tests.integration.locking.steps import locks
from tests.support.actors import Actor
from tests.support.models import Customer, Line, Order

pytestmark = [pytest.mark.quick, pytest.mark.not_databases("sqlite"), pytest.mark.read_committed]

ForUpdate = LockOptions.ForUpdate


@pytest.fixture
def connection(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Lend one connection, in a transaction of the lender."""
    with engine.connect() as connection:
        connection.begin()
        yield connection


@pytest.fixture
def pair(connection: sa.Connection) -> Iterator[list[LockingSession]]:
    """Make two sessions that both take part in the lender's transaction."""
    sessions = [LockingSession(connection, join_transaction_mode="rollback_only") for _ in range(2)]
    for session in sessions:
        session.get_one(Customer, 1)
    yield sessions
    with warnings.catch_warnings():
        # SQLAlchemy warns where the one has rolled back what the other one rolls back too.
        warnings.simplefilter("ignore", SAWarning)
        for session in sessions:
            session.close()


@pytest.mark.parametrize("position", [0, 1], ids=["older", "newer"])
def test_a_lock_that_is_not_available_is_typed(
    pair: list[LockingSession], alice: Actor[LockingSession], position: int
) -> None:
    alice.does(locks(Order, 2))
    with pytest.raises(LockNotAvailable) as caught:
        pair[position].get_entity(Order, 2, ForUpdate | LockOptions.NoWait)
    assert (caught.value.entity, caught.value.ident) == (Order, 2)
    with pytest.raises(PendingRollbackError):
        pair[position].execute(sa.select(Order.id))


def test_a_session_that_is_gone_takes_no_error_along(
    connection: sa.Connection, alice: Actor[LockingSession]
) -> None:
    alice.does(locks(Order, 2))
    older = LockingSession(connection, join_transaction_mode="rollback_only")
    older.get_one(Customer, 1)
    newer = LockingSession(connection, join_transaction_mode="rollback_only")
    newer.get_one(Customer, 1)
    del newer
    gc.collect()  # or else it goes at any time: SQLAlchemy's session and transaction are a cycle
    with pytest.raises(LockNotAvailable):
        older.get_entity(Order, 2, ForUpdate | LockOptions.NoWait)
    older.close()


@pytest.mark.databases("mysql", "mariadb")  # which end the transaction that has written less
@pytest.mark.parametrize("position", [0, 1], ids=["older", "newer"])
def test_a_deadlock_is_the_end_of_both(
    connection: sa.Connection,
    pair: list[LockingSession],
    alice: Actor[LockingSession],
    position: int,
    elsewhere: Callable[..., list[Any]],
) -> None:
    def write_more(session: LockingSession) -> None:
        session.execute(sa.update(Line).values(value=Line.value + 1))

    victim, beside = pair[position], pair[1 - position]
    alice.does(set_total(2, 102))
    alice.does(write_more)
    beside.execute(sa.update(Customer).where(Customer.id == 1).values(name="half"))
    victim.get_one_entity(Order, 1, ForUpdate)
    step = alice.starts(locks(Order, 1))
    with pytest.raises(DeadlockDetected) as caught:
        victim.get_entity(Order, 2, ForUpdate)
    assert (caught.value.entity, caught.value.ident) == (Order, 2)
    step.result()
    for session in pair:  # what would come now would be saved alone
        with pytest.raises(PendingRollbackError):
            session.execute(sa.update(Customer).values(name="the other half"))
        assert dict(session.held_locks) == {}
    connection.rollback()
    alice.does(lambda session: session.rollback())
    assert elsewhere(sa.select(Customer.name).order_by(Customer.id)) == [("Ann",), ("Ben",)]
