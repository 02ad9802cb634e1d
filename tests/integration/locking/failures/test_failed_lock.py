"""A lock that failed in a transaction that others have begun: nothing but rollback() goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import PendingRollbackError

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.integration.locking.steps import finds_held, recorded
from tests.support.models import Customer, Order

pytestmark = [pytest.mark.quick, pytest.mark.read_committed]

ForUpdate, NoWait = LockOptions.ForUpdate, LockOptions.NoWait
Session = LockingSession
Run = Callable[..., list[Any]]


def flush(session: Session) -> None:
    session.add(Customer(id=9, name="new"))
    session.flush()


def autoflush(session: Session) -> None:
    session.add(Customer(id=9, name="new"))
    session.scalars(sa.select(Customer)).all()


def lazy_load(session: Session) -> None:
    customer = session.get_one(Customer, 1)  # from the identity map
    session.expire(customer)
    _ = customer.name


REFUSED: dict[str, Callable[[Session], Any]] = {
    "execute": lambda session: session.execute(sa.select(Order)),
    "scalar": lambda session: session.scalar(sa.text("SELECT 1")),
    "bulk update": lambda session: session.execute(sa.update(Customer).values(name="x")),
    "get": lambda session: session.get(Order, 2),
    "refresh": lambda session: session.refresh(next(iter(session.identity_map.values()))),
    "lazy load": lazy_load,
    "flush": flush,
    "autoflush": autoflush,
    "connection": lambda session: session.connection().execute(sa.select(Order.id)),
    "driver": lambda session: session.connection().exec_driver_sql("DELETE FROM lk_line"),
    "connection commit": lambda session: session.connection().commit(),
    "plain read": lambda session: session.get_entity(Order, 2),
    "lock": lambda session: session.get_entity(Order, 2, ForUpdate),
    "set": lambda session: session.scalars(session.entity_set(Order, ForUpdate)),
    "locked": lambda session: session.locked(Order, 2).__enter__(),
    "savepoint": lambda session: session.begin_nested().session.connection(),
    "save_changes": lambda session: session.save_changes(),
    "commit": lambda session: session.commit(),
}


def fail(session: Session) -> Customer:
    """Write something, then ask for a lock that another holds, and go on regardless."""
    customer = session.get_one(Customer, 1)
    customer.name = "written before"
    if session.get_bind().dialect.name != "sqlite":  # the other holds the file
        session.flush()
    with pytest.raises(LockNotAvailable):
        session.get_entity(Order, 1, ForUpdate | NoWait)
    return customer


@pytest.fixture
def failed(session: Session, other: Session) -> Customer:
    """Let a lock fail in a transaction of the caller's, ``session.begin()``."""
    other.get_one_entity(Order, 1, ForUpdate)
    session.begin()
    return fail(session)


def test_whatever_is_tried_next_is_refused(
    engine: sa.Engine,
    session_factory: Callable[[], LockingSession],
    other: Session,
    elsewhere: Run,
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    for name, act in REFUSED.items():
        with session_factory() as session:
            session.begin()
            fail(session)
            with (
                recorded(engine) as statements,
                pytest.raises(PendingRollbackError, match="Order 1 FOR UPDATE NOWAIT"),
            ):
                act(session)
            assert statements == [], name
            session.rollback()
    other.rollback()
    assert elsewhere(sa.select(Customer.name).where(Customer.id == 1)) == [("Ann",)]


def test_it_is_refused_again_and_again(session: Session, failed: Customer) -> None:
    for _ in range(3):
        with pytest.raises(PendingRollbackError):
            session.scalar(sa.text("SELECT 1"))
    assert failed in session


def test_a_connection_from_before_is_refused(session: Session, other: Session) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    session.begin()
    connection = session.connection()
    fail(session)
    with pytest.raises(PendingRollbackError):
        connection.execute(sa.text("SELECT 1"))
    session.rollback()


def test_after_a_rollback_all_is_well(session: Session, other: Session, failed: Customer) -> None:
    session.rollback()
    other.rollback()
    assert failed.name == "Ann"
    session.get_one_entity(Order, 1, ForUpdate).total = 31
    session.save_changes()
    assert not finds_held()(other)


def test_the_end_of_the_callers_block_does_not_commit(
    session: Session, other: Session, elsewhere: Run
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    with pytest.raises(PendingRollbackError), session.begin():
        fail(session)
    assert not session.in_transaction()
    other.rollback()
    assert elsewhere(sa.select(Customer.name).where(Customer.id == 1)) == [("Ann",)]


def test_a_transaction_that_began_by_itself_is_refused_as_well(
    session: Session, other: Session
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    fail(session)
    assert session.in_transaction()
    with pytest.raises(PendingRollbackError):
        session.commit()
    session.rollback()
    assert session.get_one(Customer, 1).name == "Ann"


@pytest.mark.not_databases("sqlite")  # one lock for the file
def test_the_end_gives_up_what_was_held_before(session: Session, other: Session) -> None:
    for end in (session.rollback, session.close, session.reset):
        other.get_one_entity(Order, 1, ForUpdate)
        session.begin()
        session.get_one_entity(Order, 2, ForUpdate)
        fail(session)
        end()
        assert not session.held_locks, end
        assert not finds_held(Order, 2)(other), end


def test_a_misuse_leaves_the_transaction_as_it_was(session: Session) -> None:
    session.begin()
    with pytest.raises(ValueError, match="SkipLocked is for sets"):
        session.get_entity(Order, 1, ForUpdate | LockOptions.SkipLocked)
    with pytest.raises(ValueError, match="primary key"):
        session.get_entity(Order, (1, 2), ForUpdate)
    session.get_one_entity(Order, 1, ForUpdate).total = 31
    session.commit()
