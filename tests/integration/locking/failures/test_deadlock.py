"""Deadlock: one of two transactions that wait for each other ends, and writes nothing more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine.result import SimpleResultMetaData
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.orm import ORMExecuteState

from sa_doclock import DeadlockDetected, LockingSession, LockNotAvailable, LockOptions
from tests.integration.locking.steps import NAMES, TOTALS, cross, locks, rename, set_total, write
from tests.support.actors import Actor, Step
from tests.support.models import Customer, Order
from tests.support.poolers import ENDS_CONNECTION
from tests.support.waits import wait_until_blocked

pytestmark = [
    pytest.mark.quick,
    pytest.mark.not_databases("sqlite"),  # there is one lock per file
    pytest.mark.read_committed,
]

ForUpdate = LockOptions.ForUpdate


Session = Actor[LockingSession]
Run = Callable[..., list[Any]]


def deadlock(alice: Session, bob: Session) -> tuple[Session, BaseException, Session, Step[Any]]:
    """Lock two documents crosswise, after both have written."""
    alice.does(set_total(1, 101))
    bob.does(set_total(2, 102))
    return cross(alice, bob, lambda ident: locks(Order, ident))


def test_the_loser_gets_an_error_and_the_winner_goes_on(
    alice: Session, bob: Session, elsewhere: Run
) -> None:
    loser, failure, winner, step = deadlock(alice, bob)
    assert isinstance(failure, DeadlockDetected)
    assert failure.retryable
    assert failure.entity is Order
    assert str(failure).startswith(f"Order {failure.ident} FOR UPDATE on {alice.database.name}: ")
    step.result()
    loser.does(lambda session: session.rollback())
    winner.does(lambda session: session.save_changes())
    assert elsewhere(TOTALS) == ([(1, 101), (2, 5)] if winner is alice else [(1, 30), (2, 102)])


def write_by_connection(session: LockingSession) -> None:
    session.connection().execute(sa.update(Customer).values(name="escaped"))


def write_by_driver(session: LockingSession) -> None:
    session.connection().exec_driver_sql("UPDATE lk_customer SET name = 'escaped'")


def write_in_savepoint(session: LockingSession) -> None:
    with session.begin_nested():
        session.execute(sa.update(Customer).values(name="escaped"))


def write_by_flush(session: LockingSession) -> None:
    session.add(Customer(id=9, name="escaped"))
    session.commit()


class Mistake(Exception):
    """An error that the program's listener raises in place of the server's."""


def raise_another(_: Any) -> None:
    raise Mistake


def go_on(state: ORMExecuteState) -> Any:
    """Return as if the row did not exist, after the statement failed."""
    try:
        return state.invoke_statement()
    except DBAPIError:
        return sa.engine.IteratorResult(SimpleResultMetaData(["Order"]), iter(()))


@contextmanager
def listening(target: Any, name: str, listener: Any) -> Iterator[None]:
    event.listen(target, name, listener)
    try:
        yield
    finally:
        event.remove(target, name, listener)


def test_nothing_of_the_loser_escapes_until_it_begins_again(
    alice: Session, bob: Session, elsewhere: Run
) -> None:
    for listens in (
        nullcontext(),
        listening(sa.Engine, "handle_error", raise_another),
        listening(LockingSession, "do_orm_execute", go_on),
    ):
        with listens:
            loser, _, winner, step = deadlock(alice, bob)
        assert loser.does(lambda session: dict(session.held_locks)) == {}
        for act in (
            write,
            write_by_connection,
            write_by_driver,
            write_in_savepoint,
            write_by_flush,
        ):
            with pytest.raises(PendingRollbackError):
                loser.does(act)
        loser.does(lambda session: session.rollback())
        assert loser.does(lambda session: dict(session.held_locks)) == {}
        step.result()
        winner.does(lambda session: session.rollback())
    assert elsewhere(TOTALS) == [(1, 30), (2, 5)]
    assert elsewhere(NAMES) == [(1, "Ann"), (2, "Ben")]
    loser.does(set_total(1, 201))
    loser.does(set_total(2, 202))
    loser.does(lambda session: session.save_changes())
    assert elsewhere(TOTALS) == [(1, 201), (2, 202)]


@pytest.mark.databases("mysql", "mariadb")
def test_a_call_that_had_opened_the_transaction_leaves_nothing_to_the_next(
    alice: Session, bob: Session
) -> None:
    alice.does(set_total(2, 102))  # the server ends the one that wrote less
    both = bob.starts(lambda session: session.get_entities(Order, [1, 2], ForUpdate))
    wait_until_blocked(waiter=bob, holder=alice, step=both)
    alice.does(locks(Order, 1))
    assert isinstance(both.exception(), DeadlockDetected)
    assert not bob.does(lambda session: session.in_transaction())

    def go_on(session: LockingSession) -> None:
        customer = session.get_one_entity(Customer, 1, ForUpdate)
        with pytest.raises(LockNotAvailable), session.begin_nested():
            session.get_entity(Order, 1, ForUpdate | LockOptions.NoWait)
        assert session.get_entity(Customer, 1, ForUpdate) is customer
        session.commit()

    bob.does(go_on)


def lock_in_savepoint(ident: int) -> Callable[[LockingSession], None]:
    """Make the step that locks in a savepoint and leaves it."""

    def step(session: LockingSession) -> None:
        with session.begin_nested():
            session.get_one_entity(Order, ident, ForUpdate)

    return step


@pytest.mark.databases("postgresql")
def test_the_rollback_of_a_savepoint_saves_the_rest(
    alice: Session, bob: Session, elsewhere: Run
) -> None:
    for actor, ident in ((alice, 1), (bob, 2)):
        actor.does(lambda session: session.begin())
        actor.does(set_total(ident, 100))
    loser, failure, winner, step = cross(alice, bob, lock_in_savepoint)
    assert isinstance(failure, DeadlockDetected)
    loser.does(lambda session: session.commit())
    step.result()
    winner.does(lambda session: session.rollback())
    assert elsewhere(TOTALS) == ([(1, 100), (2, 5)] if loser is alice else [(1, 30), (2, 100)])


@pytest.mark.databases("mysql", "mariadb")
def test_innodb_has_undone_the_rest_as_well(alice: Session, bob: Session, elsewhere: Run) -> None:
    for actor, ident in ((alice, 1), (bob, 2)):
        actor.does(lambda session: session.begin())
        actor.does(set_total(ident, 100))
    loser, failure, winner, step = cross(alice, bob, lock_in_savepoint)
    assert isinstance(failure, DeadlockDetected)
    for act in (write, write_in_savepoint, LockingSession.commit):
        with pytest.raises(PendingRollbackError):
            loser.does(act)
    loser.does(lambda session: session.rollback())
    step.result()
    winner.does(lambda session: session.rollback())
    assert elsewhere(TOTALS) == [(1, 30), (2, 5)]
    assert elsewhere(NAMES) == [(1, "Ann"), (2, "Ben")]


# --------------------------------------------------------------------------------------------------
# Deadlocks outside lock calls: in a flush, or in the program's own statement.


@ENDS_CONNECTION
def test_a_deadlock_at_flush(alice: Session, bob: Session, elsewhere: Run) -> None:
    alice.does(rename(1, "alice"))
    bob.does(rename(2, "bob"))
    loser, failure, winner, step = cross(alice, bob, lambda ident: rename(ident, "crossed"))
    assert isinstance(failure, DeadlockDetected)
    assert str(failure).startswith(f"the transaction on {alice.database.name}: ")
    with pytest.raises(PendingRollbackError):
        loser.does(write)
    step.result()
    winner.does(lambda session: session.rollback())
    loser.does(lambda session: session.rollback())
    assert elsewhere(NAMES) == [(1, "Ann"), (2, "Ben")]


@ENDS_CONNECTION
def test_a_deadlock_of_a_plain_statement(alice: Session, bob: Session, elsewhere: Run) -> None:
    def rename_by_statement(ident: int) -> Callable[[LockingSession], Any]:
        statement = sa.update(Customer).where(Customer.id == ident).values(name="crossed")
        return lambda session: session.execute(statement)

    alice.does(rename(1, "alice"))
    bob.does(rename(2, "bob"))
    loser, failure, winner, step = cross(alice, bob, rename_by_statement)
    assert isinstance(failure, DeadlockDetected)
    with pytest.raises(PendingRollbackError):
        loser.does(write)
    step.result()
    winner.does(lambda session: session.rollback())
    loser.does(lambda session: session.rollback())
    assert elsewhere(NAMES) == [(1, "Ann"), (2, "Ben")]
