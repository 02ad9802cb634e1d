"""After get_entities has failed: rolled back if it had opened the transaction, else refused."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import OperationalError, PendingRollbackError

from sa_doclock import LockingSession, LockNotAvailable, LockNotSupported, LockOptions
from tests.integration.locking.steps import finds_held
from tests.support.databases import Database
from tests.support.models import Customer, Order

ForUpdate, NoWait = LockOptions.ForUpdate, LockOptions.NoWait
Session = LockingSession


def test_what_it_has_opened_is_rolled_back(session: Session, other: Session) -> None:
    other.get_one_entity(Order, 2, ForUpdate)
    with pytest.raises(LockNotAvailable):
        session.get_entities(Order, [1, 2], ForUpdate | NoWait)
    assert not session.in_transaction()
    other.rollback()
    assert not finds_held(Order, 1)(other)
    assert len(session.get_entities(Order, [1, 2], ForUpdate | NoWait)) == 2


@pytest.mark.not_databases("sqlite")  # who holds one document there holds the file
@pytest.mark.read_committed
def test_a_callers_transaction_does_nothing_more(session: Session, other: Session) -> None:
    other.get_one_entity(Order, 2, ForUpdate)
    session.begin()
    session.get_one(Customer, 1)
    with pytest.raises(LockNotAvailable) as caught:
        session.get_entities(Order, [1, 2], ForUpdate | NoWait)
    assert isinstance(caught.value, OperationalError)
    for act in (
        lambda: session.get_entities(Order, [1], ForUpdate),
        lambda: session.get_entities(Order, [1]),
        session.commit,
    ):
        with pytest.raises(PendingRollbackError):
            act()
    session.rollback()
    assert not session.held_locks
    assert not finds_held(Order, 1)(other)
    assert [order.id for order in session.get_entities(Order, [1], ForUpdate)] == [1]


@pytest.mark.not_databases("sqlite")
@pytest.mark.read_committed
def test_the_rollback_of_a_savepoint_saves_the_rest(session: Session, other: Session) -> None:
    other.get_one_entity(Order, 2, ForUpdate)
    with session.begin():
        session.get_one(Customer, 1).name = "Anna"
        session.flush()
        with pytest.raises(LockNotAvailable), session.begin_nested():
            session.get_entities(Order, [1, 2], ForUpdate | NoWait)
        assert not session.held_locks
    assert session.get_one(Customer, 1).name == "Anna"


def test_autocommit_is_refused(documents: Database) -> None:
    engine = documents.engine(isolation_level="AUTOCOMMIT")
    with Session(engine) as session:
        with pytest.raises(LockNotSupported, match=r"^Order rows FOR UPDATE on .*AUTOCOMMIT"):
            session.get_entities(Order, [1, 2], ForUpdate)
        assert not session.in_transaction()
        assert len(session.get_entities(Order, [1, 2])) == 2
