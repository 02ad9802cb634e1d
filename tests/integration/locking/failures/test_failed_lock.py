"""After a failed lock in a transaction that the caller began, only rollback() is possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import PendingRollbackError

from sa_doclock import LockingSession, LockNotAvailable, LockOptions, UnsavedChanges
from tests.integration.locking.steps import finds_held, recorded
from tests.support.models import Customer, Line, Order

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
    """Write something, then request a lock that another holds, and continue regardless."""
    customer = session.get_one(Customer, 1)
    customer.name = "written before"
    if session.get_bind().dialect.name != "sqlite":  # the other holds the file
        session.flush()
    with pytest.raises(LockNotAvailable):
        session.get_entity(Order, 1, ForUpdate | NoWait)
    return customer


@pytest.fixture
def failed(session: Session, other: Session) -> Customer:
    """Let a lock fail in the caller's transaction, ``session.begin()``."""
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


# --------------------------------------------------------------------------------------------------
# A lock that failed inside a savepoint: rolling back the savepoint is enough, and work continues.

NAME = sa.select(Customer.name).where(Customer.id == 1)


@pytest.fixture
def customer(session: Session, other: Session) -> Customer:
    """Write in the caller's transaction, while another session holds order 1."""
    other.get_one_entity(Order, 1, ForUpdate)
    session.begin()
    customer = session.get_one(Customer, 1)
    customer.name = "written before"
    session.flush()
    return customer


@pytest.mark.not_databases("sqlite")
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


@pytest.mark.not_databases("sqlite")
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


@pytest.mark.not_databases("sqlite")
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


@pytest.mark.not_databases("sqlite")
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


@pytest.mark.not_databases("sqlite")
def test_the_rollback_of_an_outer_savepoint_is_enough(
    session: Session, customer: Customer, elsewhere: Run
) -> None:
    with pytest.raises(LockNotAvailable), session.begin_nested(), session.begin_nested():
        session.get_entity(Order, 1, ForUpdate | NoWait)
    session.commit()
    assert customer.name == "written before"
    assert elsewhere(NAME) == [("written before",)]


@pytest.mark.not_databases("sqlite")
def test_a_savepoint_that_was_over_before_does_not_help(
    session: Session, customer: Customer
) -> None:
    with session.begin_nested():
        customer.name = "written inside"
    with pytest.raises(LockNotAvailable):
        session.get_entity(Order, 1, ForUpdate | NoWait)
    with pytest.raises(PendingRollbackError):
        session.refresh(customer)


@pytest.mark.not_databases("sqlite")
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


@pytest.mark.not_databases("sqlite")
def test_a_savepoint_that_the_lock_has_found_open_is_rolled_back_alone(
    session: Session, other: Session, elsewhere: Run
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    with session.begin():
        with pytest.raises(LockNotAvailable), session.begin_nested():
            session.get_entity(Order, 1, ForUpdate | NoWait)
        session.get_one(Customer, 1).name = "written after"
    assert elsewhere(NAME) == [("written after",)]


@pytest.mark.not_databases("sqlite")
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
    line.value = 5  # not read again: the session cannot know its document
    with pytest.raises(UnsavedChanges):
        session.get_entity(Order, 9, ForUpdate)
