"""held_locks, when the transaction ends in another way than by commit, rollback or close."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, PendingRollbackError

from sa_doclock import DeadlockDetected, LockingSession, LockOptions
from tests.integration.locking.crosswise import cross, set_total
from tests.integration.locking.steps import finds_held, locks, soon_free
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Customer, Order

pytestmark = [pytest.mark.quick, pytest.mark.read_committed]

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
Session = LockingSession

KILL: Mapping[str, str] = {
    "postgresql": "SELECT pg_terminate_backend({})",
    "mysql": "KILL {}",
    "mariadb": "KILL {}",
}
OWN_ID: Mapping[str, str] = {
    "postgresql": "SELECT pg_backend_pid()",
    "mysql": "SELECT CONNECTION_ID()",
    "mariadb": "SELECT CONNECTION_ID()",
}

BROKEN = sa.text("SELECT * FROM there_is_no_such_table")


def hold(session: Session) -> Order:
    """Lock order 1, and learn that it is held."""
    order = session.get_one_entity(Order, 1, ForUpdate)
    assert dict(session.held_locks) == {(Order, (1,)): ForUpdate}
    return order


def test_an_invalidated_session_holds_nothing(session: Session, other: Session) -> None:
    hold(session)
    session.invalidate()
    assert not session.held_locks
    assert soon_free(other)
    hold(session)
    assert finds_held()(other)


def test_a_session_whose_connection_was_invalidated_holds_nothing(
    session: Session, other: Session
) -> None:
    order = hold(session)
    session.connection().invalidate()
    assert not session.held_locks
    assert soon_free(other)
    session.rollback()
    assert hold(session) is order
    assert finds_held()(other)


ASK_AGAIN: dict[str, Callable[[Session], object]] = {
    "get_entity": lambda s: s.get_entity(Order, 1, ForUpdate),
    "weaker": lambda s: s.get_entity(Order, 1, SharedRead),
    "get_entities": lambda s: s.get_entities(Order, [1], ForUpdate),
    "get_document": lambda s: s.get_document(Order, 1, ForUpdate),
    "entity_set": lambda s: s.scalars(s.entity_set(Order, ForUpdate)).all(),
}


@pytest.mark.parametrize("ask", ASK_AGAIN.values(), ids=ASK_AGAIN)
def test_a_lost_lock_is_not_answered_from_memory(
    session: Session, ask: Callable[[Session], object]
) -> None:
    order = hold(session)
    session.connection().invalidate()
    with pytest.raises(PendingRollbackError):
        ask(session)
    session.rollback()
    assert ask(session) is not None
    assert (Order, (1,)) in session.held_locks
    session.rollback()
    assert order in session


def kill(documents: Database, session: Session) -> None:
    """End the session's connection from another one."""
    own = session.connection().exec_driver_sql(OWN_ID[documents.name]).scalar_one()
    with documents.observer().connect() as connection:
        connection.exec_driver_sql(KILL[documents.name].format(own))


@pytest.mark.databases(*KILL)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_killed_session_holds_nothing_once_it_knows(
    documents: Database, session: Session, other: Session
) -> None:
    order = hold(session)
    kill(documents, session)
    with pytest.raises(DBAPIError) as caught:
        session.scalar(sa.select(Customer.name).where(Customer.id == 1))
    assert caught.value.connection_invalidated
    assert not session.held_locks
    with pytest.raises(PendingRollbackError):
        session.get_entity(Order, 1, ForUpdate)
    assert soon_free(other)
    session.rollback()
    assert hold(session) is order
    assert finds_held()(other)


@pytest.mark.databases(*KILL)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_nor_when_the_next_lock_has_reported_it(documents: Database, session: Session) -> None:
    hold(session)
    kill(documents, session)
    with pytest.raises(DBAPIError):
        session.get_entity(Order, 2, ForUpdate)
    assert not session.held_locks
    session.rollback()
    hold(session)


@pytest.mark.databases(*KILL)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_a_killed_session_wrote_is_lost_and_reported(
    documents: Database, session: Session, other: Session
) -> None:
    hold(session).total = 31
    session.flush()
    kill(documents, session)
    with pytest.raises(DBAPIError):
        session.save_changes()
    session.rollback()
    assert not session.held_locks
    assert other.get_one(Order, 1).total == 30


@pytest.mark.not_databases("sqlite")
def test_the_victim_of_a_deadlock_holds_nothing(alice: Actor[Session], bob: Actor[Session]) -> None:
    alice.does(set_total(1, 101))
    bob.does(set_total(2, 102))
    loser, failure, winner, step = cross(alice, bob, lambda ident: locks(Order, ident))
    assert isinstance(failure, DeadlockDetected)
    step.result()  # the winner has what the loser had
    assert len(winner.does(lambda session: dict(session.held_locks))) == 2
    assert loser.does(lambda session: dict(session.held_locks)) == {}
    loser.does(lambda session: session.rollback())
    winner.does(lambda session: session.rollback())


@pytest.mark.databases("postgresql")  # which gives locks up with the error
def test_an_aborted_transaction_holds_nothing(session: Session, other: Session) -> None:
    hold(session)
    with pytest.raises(DBAPIError):
        session.execute(BROKEN)
    assert not session.held_locks
    assert not finds_held()(other)
    with pytest.raises(DBAPIError):
        session.get_entity(Order, 1, ForUpdate)
    session.rollback()
    hold(session)


@pytest.mark.not_databases("postgresql")
def test_a_transaction_that_an_error_has_not_aborted_holds_on(
    session: Session, other: Session
) -> None:
    hold(session)
    with pytest.raises(DBAPIError):
        session.execute(BROKEN)
    assert list(session.held_locks) == [(Order, (1,))]
    assert finds_held()(other)


def test_an_error_in_a_savepoint_leaves_what_was_held_before(
    session: Session, other: Session
) -> None:
    hold(session)
    with suppress(DBAPIError), session.begin_nested():
        session.get_one_entity(Order, 2, ForUpdate)
        session.execute(BROKEN)
    assert list(session.held_locks) == [(Order, (1,))]
    assert finds_held()(other)


def test_two_sessions_have_books_of_their_own(session: Session, other: Session) -> None:
    session.get_one_entity(Order, 1, SharedRead)
    assert not other.held_locks
    other.close()
    assert list(session.held_locks) == [(Order, (1,))]


def test_a_mapping_that_was_kept_shows_what_is_held_now(session: Session) -> None:
    held = session.held_locks
    assert not held
    hold(session)
    assert list(held) == [(Order, (1,))]
    session.rollback()
    assert not held
