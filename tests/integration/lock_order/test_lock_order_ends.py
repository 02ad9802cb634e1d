"""The lock order starts anew with the next transaction, or at a savepoint."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockNotAvailable, LockOptions, LockOrderViolation
from tests.support.models import Contract, Order, Ticket

pytestmark = pytest.mark.read_committed

ForUpdate = LockOptions.ForUpdate
Session = LockingSession


@pytest.fixture
def session_factory(engine: sa.Engine) -> sessionmaker[LockingSession]:
    return sessionmaker(engine, class_=LockingSession, lock_order=[Ticket, Order, Contract])


ENDS: dict[str, Callable[[Session], object]] = {
    "commit": LockingSession.commit,
    "rollback": LockingSession.rollback,
    "close": LockingSession.close,
    "reset": LockingSession.reset,
    "save_changes": LockingSession.save_changes,
    "release_locks": LockingSession.release_locks,
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_the_next_transaction_begins_at_the_beginning(
    session: Session, end: Callable[[Session], object]
) -> None:
    session.get_one_entity(Contract, 1, ForUpdate)
    with pytest.raises(LockOrderViolation):
        session.get_entity(Ticket, 1, ForUpdate)
    end(session)
    session.get_one_entity(Ticket, 1, ForUpdate)
    session.get_one_entity(Contract, 1, ForUpdate)
    with pytest.raises(LockOrderViolation):
        session.get_entity(Order, 1, ForUpdate)


def test_the_rollback_of_a_savepoint_goes_back_to_where_it_was(session: Session) -> None:
    session.get_one_entity(Ticket, 1, ForUpdate)
    with session.begin_nested() as savepoint:
        session.get_one_entity(Contract, 1, ForUpdate)
        savepoint.rollback()
    session.get_one_entity(Order, 1, ForUpdate)
    with pytest.raises(LockOrderViolation, match="has locked Order first"):
        session.get_entity(Ticket, 2, ForUpdate)


def test_the_release_of_a_savepoint_does_not(session: Session) -> None:
    session.get_one_entity(Ticket, 1, ForUpdate)
    with session.begin_nested():
        session.get_one_entity(Contract, 1, ForUpdate)
    with pytest.raises(LockOrderViolation, match="has locked Contract first"):
        session.get_entity(Order, 1, ForUpdate)


def test_within_a_savepoint_the_order_goes_on(session: Session) -> None:
    session.get_one_entity(Contract, 1, ForUpdate)
    with session.begin_nested():
        with pytest.raises(LockOrderViolation):
            session.get_entity(Order, 1, ForUpdate)
        session.get_one_entity(Contract, 2, ForUpdate)


def test_a_lock_that_failed_is_not_held(session: Session, other: Session) -> None:
    other.get_one_entity(Contract, 1, ForUpdate)
    with pytest.raises(LockNotAvailable):
        session.get_entity(Contract, 1, ForUpdate | LockOptions.NoWait)
    other.rollback()
    session.get_one_entity(Order, 1, ForUpdate)


def test_a_document_that_there_is_not_is_not_held(session: Session) -> None:
    assert session.get_entity(Contract, 99, ForUpdate) is None
    assert session.get_entities(Contract, [98, 99], ForUpdate) == []
    session.get_one_entity(Order, 1, ForUpdate)
