"""held_locks: the locks of this transaction, and when the session removes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, PendingRollbackError

from sa_doclock import DeadlockDetected, LockingSession, LockOptions
from tests.integration.locking.expectations import KINDS
from tests.integration.locking.steps import (
    cross,
    finds_held,
    locks,
    locks_rows,
    recorded,
    set_total,
    soon_free,
)
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import ColdStore, Contract, Customer, Lease, Line, Order, Ticket, Voucher
from tests.support.poolers import ENDS_CONNECTION

pytestmark = [pytest.mark.quick, pytest.mark.own_logic, pytest.mark.read_committed]

ForUpdate, SharedRead, NoWait, SnapshotRead = (
    LockOptions.ForUpdate,
    LockOptions.SharedRead,
    LockOptions.NoWait,
    LockOptions.SnapshotRead,
)
Session = LockingSession
ROOTS = {"joined": Contract, "single-table": Ticket, "concrete": ColdStore}


def test_the_key_is_the_root_and_the_identity(session: Session) -> None:
    for kind in KINDS:
        session.get_one_entity(kind.entity, kind.ident, ForUpdate)
        identity = kind.ident if isinstance(kind.ident, tuple) else (kind.ident,)
        root = ROOTS.get(kind.name, kind.entity)
        assert dict(session.held_locks) == {(root, identity): ForUpdate}
        session.rollback()


def test_a_key_is_the_same_however_it_is_given(session: Session) -> None:
    idents: list[Any] = [(2024, 1), [2024, 1], {"number": 1, "year": 2024}]
    for ident in idents:
        session.get_one_entity(Voucher, ident, ForUpdate)
        assert list(session.held_locks) == [(Voucher, (2024, 1))]
        session.rollback()


def test_the_value_is_the_base_lock(session: Session) -> None:
    for base in (ForUpdate, SharedRead, SnapshotRead):
        session.get_one_entity(Order, 1, base)
        assert dict(session.held_locks) == {(Order, (1,)): base}
        session.rollback()
    for base in (ForUpdate, SharedRead):
        session.get_one_entity(Order, 1, base | NoWait)
        assert dict(session.held_locks) == {(Order, (1,)): base}
        session.rollback()


def test_a_plain_read_is_not_in_it(session: Session) -> None:
    for lock in (LockOptions.None_, LockOptions.NoLock):
        session.get_one_entity(Order, 1, lock)
        assert not session.held_locks


def test_rows_of_a_set_are_in_it(session: Session) -> None:
    session.scalars(session.entity_set(Contract, ForUpdate)).all()
    assert dict(session.held_locks) == {(Contract, (1,)): ForUpdate, (Contract, (2,)): ForUpdate}
    session.rollback()
    query = session.entity_set(Order, SharedRead).join(Order.lines).where(Line.value > 5)
    session.scalars(query).unique().all()
    assert dict(session.held_locks) == {(Order, (1,)): SharedRead}


def test_it_is_read_only(session: Session) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    with pytest.raises(TypeError):
        session.held_locks[Order, (2,)] = ForUpdate  # type: ignore[index]


def test_the_end_empties_it(session: Session) -> None:
    for end in (session.commit, session.rollback, session.close, session.reset):
        session.get_one_entity(Order, 1, ForUpdate)
        assert session.held_locks
        end()
        assert not session.held_locks, end


def test_a_lock_is_the_transactions_not_the_objects(
    engine: sa.Engine, session: Session, other: Session
) -> None:
    session.expunge(session.get_one_entity(Order, 1, ForUpdate))
    session.expunge_all()
    assert list(session.held_locks) == [(Order, (1,))]
    assert finds_held()(other)
    with recorded(engine) as statements:
        assert session.get_one_entity(Order, 1, ForUpdate).total == 30
    assert not [text for text in statements if locks_rows(text) or "BEGIN" in text]


def test_the_rollback_of_a_savepoint_forgets_what_was_locked_in_it(session: Session) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    with session.begin_nested() as savepoint:
        session.get_one_entity(Order, 2, ForUpdate)
        savepoint.rollback()
    assert list(session.held_locks) == [(Order, (1,))]


@pytest.mark.databases("postgresql")  # InnoDB keeps the row locked
def test_what_it_forgets_may_change_on_postgresql(session: Session, other: Session) -> None:
    first = session.get_one_entity(Order, 1, ForUpdate)
    with session.begin_nested() as savepoint:
        second = session.get_one_entity(Order, 2, ForUpdate)
        savepoint.rollback()
    assert second.total == 5
    other.get_one_entity(Order, 2, ForUpdate).total = 6
    other.save_changes()
    assert session.get_one_entity(Order, 2, ForUpdate).total == 6
    assert finds_held(Order, 2)(other)
    assert first in session


@pytest.mark.databases("mysql", "mariadb")
def test_what_it_forgets_is_still_locked_by_innodb(session: Session, other: Session) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    with session.begin_nested() as savepoint:
        session.get_one_entity(Order, 2, ForUpdate)
        savepoint.rollback()
    assert finds_held(Order, 2)(other)
    session.rollback()
    assert not finds_held(Order, 2)(other)


def test_what_it_forgets_is_locked_anew(session: Session, other: Session) -> None:
    session.begin()
    session.connection()
    with session.begin_nested() as savepoint:
        session.get_one_entity(Order, 1, ForUpdate)
        savepoint.rollback()
    assert not session.held_locks
    session.get_one_entity(Order, 1, ForUpdate)
    assert finds_held()(other)


def test_what_was_locked_in_a_savepoint_is_fresh_after_its_rollback(session: Session) -> None:
    session.begin()
    with session.begin_nested() as savepoint:
        session.get_one_entity(Order, 1, ForUpdate).total = 31
        session.flush()
        savepoint.rollback()
    order = session.get_one_entity(Order, 1, ForUpdate)
    assert order.total == 30
    session.commit()


def test_the_release_of_a_savepoint_keeps_it(session: Session, other: Session) -> None:
    with session.begin():
        with session.begin_nested():
            session.get_one_entity(Order, 1, ForUpdate)
        assert list(session.held_locks) == [(Order, (1,))]
        assert finds_held()(other)


def test_savepoints_in_savepoints(session: Session) -> None:
    with session.begin():
        with session.begin_nested() as outer:
            session.get_one_entity(Order, 1, ForUpdate)
            with session.begin_nested():
                session.get_one_entity(Order, 2, ForUpdate)
            assert len(session.held_locks) == 2
            outer.rollback()
        assert not session.held_locks


def test_a_lock_taken_before_and_again_in_a_savepoint_stays(session: Session) -> None:
    session.get_one_entity(Lease, 1, ForUpdate)
    with session.begin_nested() as savepoint:
        session.get_one_entity(Contract, 1, ForUpdate)
        savepoint.rollback()
    assert list(session.held_locks) == [(Contract, (1,))]


# --------------------------------------------------------------------------------------------------
# held_locks after a transaction ends by something other than commit, rollback or close.

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
    """Lock order 1, and assert that it is held."""
    order = session.get_one_entity(Order, 1, ForUpdate)
    assert dict(session.held_locks) == {(Order, (1,)): ForUpdate}
    return order


@ENDS_CONNECTION
def test_an_invalidated_session_holds_nothing(session: Session, other: Session) -> None:
    hold(session)
    session.invalidate()
    assert not session.held_locks
    assert soon_free(other)
    hold(session)
    assert finds_held()(other)


@ENDS_CONNECTION
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


@ENDS_CONNECTION
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


@ENDS_CONNECTION
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


@ENDS_CONNECTION
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


@ENDS_CONNECTION
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


@ENDS_CONNECTION
@pytest.mark.not_databases("sqlite")
def test_the_victim_of_a_deadlock_holds_nothing(alice: Actor[Session], bob: Actor[Session]) -> None:
    alice.does(set_total(1, 101))
    bob.does(set_total(2, 102))
    loser, failure, winner, step = cross(alice, bob, lambda ident: locks(Order, ident))
    assert isinstance(failure, DeadlockDetected)
    step.result()  # the winner has the loser's lock
    assert len(winner.does(lambda session: dict(session.held_locks))) == 2
    assert loser.does(lambda session: dict(session.held_locks)) == {}
    loser.does(lambda session: session.rollback())
    winner.does(lambda session: session.rollback())


@ENDS_CONNECTION
@pytest.mark.databases("postgresql")  # it releases locks with the error
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


@ENDS_CONNECTION
@pytest.mark.not_databases("postgresql")
def test_a_transaction_that_an_error_has_not_aborted_holds_on(
    session: Session, other: Session
) -> None:
    hold(session)
    with pytest.raises(DBAPIError):
        session.execute(BROKEN)
    assert list(session.held_locks) == [(Order, (1,))]
    assert finds_held()(other)


@ENDS_CONNECTION
def test_an_error_in_a_savepoint_leaves_what_was_held_before(
    session: Session, other: Session
) -> None:
    hold(session)
    with suppress(DBAPIError), session.begin_nested():
        session.get_one_entity(Order, 2, ForUpdate)
        session.execute(BROKEN)
    assert list(session.held_locks) == [(Order, (1,))]
    assert finds_held()(other)


@ENDS_CONNECTION
def test_two_sessions_have_books_of_their_own(session: Session, other: Session) -> None:
    session.get_one_entity(Order, 1, SharedRead)
    assert not other.held_locks
    other.close()
    assert list(session.held_locks) == [(Order, (1,))]


@ENDS_CONNECTION
def test_a_mapping_that_was_kept_shows_what_is_held_now(session: Session) -> None:
    held = session.held_locks
    assert not held
    hold(session)
    assert list(held) == [(Order, (1,))]
    session.rollback()
    assert not held
