"""with_for_update() is taken as every lock is: what that adds, and what stays with the program."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.integration.locking.steps import recorded
from tests.support.models import Customer, Order

pytestmark = pytest.mark.read_committed

ForUpdate = LockOptions.ForUpdate
FIRST = sa.select(Order).where(Order.id == 1).with_for_update()
CUSTOMER = sa.select(Customer).where(Customer.id == 1).with_for_update()
Session = LockingSession


def nowait(session: Session) -> Any:
    return session.scalars(FIRST.with_for_update(nowait=True)).one()


def test_a_listener_of_its_autoflush_may_lock(session: Session) -> None:
    order = session.get_one(Order, 2)
    order.remark = "changed"

    def lock_customer(session: Session, *_: Any) -> None:
        session.get_one_entity(Customer, 1, ForUpdate)

    event.listen(session, "before_flush", lock_customer)
    session.scalars(FIRST).one()
    assert dict(session.held_locks) == {(Customer, (1,)): ForUpdate, (Order, (1,)): ForUpdate}


def test_a_listener_of_a_lock_may_execute_it(session: Session) -> None:
    granted: list[Any] = []

    def lock_customer(_order: Order, context: Any) -> None:
        context.session.scalars(CUSTOMER).one()

    event.listen(Order, "load", lock_customer)
    event.listen(session, "lock_acquired", lambda _, document, *__: granted.append(document))
    try:
        session.get_one_entity(Order, 1, ForUpdate)
    finally:
        event.remove(Order, "load", lock_customer)
    assert granted == [(Customer, (1,)), (Order, (1,))]  # each of its own call, once


@pytest.mark.not_databases("sqlite")  # where the lock, and so its error, is the transaction's
def test_a_refusal_is_left_to_the_program(session: Session, other: Session) -> None:
    kept = other.get_one_entity(Order, 1, ForUpdate)
    with pytest.raises(LockNotAvailable, match=r"^Order rows FOR UPDATE NOWAIT on ") as caught:
        nowait(session)
    assert caught.value.waited > 0
    assert session.in_transaction()
    session.rollback()
    other.rollback()
    assert nowait(session).id == 1
    del kept


def test_a_batch_executes_it_once_and_as_it_is(engine: sa.Engine) -> None:
    with Session(engine, priority="batch") as batch, recorded(engine) as sent:
        assert batch.scalars(FIRST).one() is nowait(batch)
    assert not [one for one in sent if "SAVEPOINT" in one]


@pytest.mark.databases("mysql", "mariadb")
def test_a_transaction_that_the_server_keeps_goes_on(session: Session, other: Session) -> None:
    kept = other.get_one_entity(Order, 1, ForUpdate)
    mine = session.get_one_entity(Order, 2, ForUpdate)
    mine.remark = "saved"
    with pytest.raises(LockNotAvailable):
        nowait(session)
    session.commit()
    assert other.scalar(sa.select(Order.remark).where(Order.id == 2)) == "saved"
    del kept


@pytest.mark.databases("postgresql")
def test_it_learns_who_holds_the_lock(engine: sa.Engine, other: Session) -> None:
    kept = other.get_one_entity(Order, 1, ForUpdate)
    with Session(engine, diagnose=True) as session:
        with pytest.raises(LockNotAvailable, match="held by") as caught:
            nowait(session)
        assert len(caught.value.blockers) == 1
    del kept
