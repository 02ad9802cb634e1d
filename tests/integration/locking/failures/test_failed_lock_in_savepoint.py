"""A lock that failed inside of a savepoint: its rollback is enough, and the rest goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import PendingRollbackError

from sa_doclock import LockingSession, LockNotAvailable, LockOptions, UnsavedChanges
from tests.integration.locking.steps import finds_held
from tests.support.models import Customer, Line, Order

pytestmark = [
    pytest.mark.quick,
    pytest.mark.not_databases("sqlite"),  # who has written there holds the one lock
    pytest.mark.read_committed,
]

ForUpdate, NoWait = LockOptions.ForUpdate, LockOptions.NoWait
Session = LockingSession
Run = Callable[..., list[Any]]
NAME = sa.select(Customer.name).where(Customer.id == 1)


@pytest.fixture
def customer(session: Session, other: Session) -> Customer:
    """Write in a transaction of the caller's, while another holds order 1."""
    other.get_one_entity(Order, 1, ForUpdate)
    session.begin()
    customer = session.get_one(Customer, 1)
    customer.name = "written before"
    session.flush()
    return customer


@pytest.mark.parametrize("how", [{"lock": ForUpdate | NoWait}, {"lock_timeout": 0.2}])
def test_the_outer_transaction_goes_on(
    session: Session, customer: Customer, elsewhere: Run, how: dict[str, Any]
) -> None:
    with pytest.raises(LockNotAvailable), session.begin_nested():
        session.get_entity(Order, 1, **{"lock": ForUpdate, **how})
    session.get_one_entity(Order, 2, ForUpdate).total = 6
    session.commit()
    assert customer.name == "written before"
    assert elsewhere(NAME) == [("written before",)]
    assert elsewhere(sa.select(Order.total).where(Order.id == 2)) == [(6,)]


def test_what_was_written_in_the_savepoint_is_undone(
    session: Session, customer: Customer, elsewhere: Run
) -> None:
    savepoint = session.begin_nested()
    customer.name = "written inside"
    session.flush()
    with pytest.raises(LockNotAvailable):
        session.get_entity(Order, 1, ForUpdate | NoWait)
    savepoint.rollback()
    session.commit()
    assert elsewhere(NAME) == [("written before",)]


def test_nothing_goes_on_inside_of_it(session: Session, customer: Customer) -> None:
    savepoint = session.begin_nested()
    with pytest.raises(LockNotAvailable):
        session.get_entity(Order, 1, ForUpdate | NoWait)
    acts: list[Callable[[], object]] = [
        lambda: session.refresh(customer),
        savepoint.commit,
        session.commit,
    ]
    for act in acts:
        with pytest.raises(PendingRollbackError):
            act()
    savepoint.rollback()
    assert customer.name == "written before"


def test_the_rollback_of_an_inner_savepoint_is_enough(
    session: Session, customer: Customer, elsewhere: Run
) -> None:
    with session.begin_nested():
        customer.name = "written inside"
        session.flush()
        with pytest.raises(LockNotAvailable), session.begin_nested():
            session.get_entity(Order, 1, ForUpdate | NoWait)
        session.scalars(NAME).one()
    session.commit()
    assert elsewhere(NAME) == [("written inside",)]


def test_the_rollback_of_an_outer_savepoint_is_enough(
    session: Session, customer: Customer, elsewhere: Run
) -> None:
    with pytest.raises(LockNotAvailable), session.begin_nested(), session.begin_nested():
        session.get_entity(Order, 1, ForUpdate | NoWait)
    session.commit()
    assert customer.name == "written before"
    assert elsewhere(NAME) == [("written before",)]


def test_a_savepoint_that_was_over_before_does_not_help(
    session: Session, customer: Customer
) -> None:
    with session.begin_nested():
        customer.name = "written inside"
    with pytest.raises(LockNotAvailable):
        session.get_entity(Order, 1, ForUpdate | NoWait)
    with pytest.raises(PendingRollbackError):
        session.refresh(customer)


def test_locks_from_before_the_savepoint_are_kept(
    session: Session, other: Session, customer: Customer
) -> None:
    session.get_one_entity(Order, 2, ForUpdate)
    with pytest.raises(LockNotAvailable), session.begin_nested():
        session.get_entity(Order, 1, ForUpdate | NoWait)
    assert list(session.held_locks) == [(Order, (2,))]
    other.rollback()
    assert finds_held(Order, 2)(other)
    assert customer in session


def test_a_savepoint_that_the_lock_has_found_open_is_rolled_back_alone(
    session: Session, other: Session, elsewhere: Run
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    with session.begin():
        with pytest.raises(LockNotAvailable), session.begin_nested():
            session.get_entity(Order, 1, ForUpdate | NoWait)
        session.get_one(Customer, 1).name = "written after"
    assert elsewhere(NAME) == [("written after",)]


@pytest.mark.not_databases("mysql", "mariadb")  # they keep the locks of a savepoint
def test_a_line_that_was_moved_in_it_is_where_others_have_put_it(
    session: Session, elsewhere: Run
) -> None:
    for number in (7, 8, 9):
        elsewhere(sa.insert(Order).values(id=number, total=0, remark=""))
    elsewhere(sa.insert(Line).values(id=70, order_id=7, name="x", value=1))
    session.get_one_entity(Order, 8, ForUpdate)
    savepoint = session.begin_nested()
    line = session.get_one_entity(Order, 7, ForUpdate).lines[0]
    line.order_id = 8
    session.flush()
    session.refresh(line)
    session.get_one(Order, 2).total = 6
    with pytest.raises(UnsavedChanges):
        session.get_entity(Order, 2, ForUpdate)
    savepoint.rollback()
    assert [*session.held_locks] == [(Order, (8,))]
    elsewhere(sa.update(Line).where(Line.id == 70).values(order_id=9))
    session.get_one_entity(Order, 2, ForUpdate)
    line.value = 5  # was not read again: the session cannot know where it is
    with pytest.raises(UnsavedChanges):
        session.get_entity(Order, 9, ForUpdate)
