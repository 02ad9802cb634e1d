"""A savepoint comes before anything else: its RELEASE must not release the lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, InvalidRequestError

from sa_doclock import (
    DeadlockDetected,
    LockingSession,
    LockNotAvailable,
    LockOptions,
    WrongIsolation,
)
from tests.integration.locking.steps import cross, finds_held, reads, seen, set_total
from tests.support.actors import Actor
from tests.support.databases import PIPELINED, Database
from tests.support.models import Customer, Line, Order

pytestmark = pytest.mark.quick

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
Session = LockingSession
Run = Callable[..., list[Any]]
Begin = Callable[[LockingSession], Any]
TOTALS = sa.select(Order.total).order_by(Order.id)


@pytest.mark.read_committed
def test_the_lock_outlives_the_savepoint(session: Session, other: Session, elsewhere: Run) -> None:
    with session.begin():
        with session.begin_nested():
            session.get_one_entity(Order, 1, ForUpdate).total = 31
        assert finds_held()(other)
        assert list(session.held_locks) == [(Order, (1,))]
    assert not finds_held()(other)
    assert elsewhere(TOTALS) == [(31,), (5,)]


@pytest.mark.read_committed
def test_without_begin(session: Session, other: Session, elsewhere: Run) -> None:
    with session.begin_nested():
        session.get_one_entity(Order, 1, ForUpdate).total = 31
    assert finds_held()(other)
    session.save_changes()  # SQLAlchemy treats a lone begin_nested() as begin()
    assert not session.in_transaction()
    assert not finds_held()(other)
    assert elsewhere(TOTALS) == [(31,), (5,)]


@pytest.mark.read_committed
@pytest.mark.parametrize("begin", [Session.begin_nested, partial(Session.begin, nested=True)])
@pytest.mark.parametrize("undone", [False, True])
def test_a_block_after_it_ends_the_transaction(
    session: Session, other: Session, elsewhere: Run, begin: Begin, *, undone: bool
) -> None:
    with begin(session) as savepoint:
        session.add(Customer(id=9, name="tag"))
        session.flush()
        if undone:
            savepoint.rollback()
    with session.locked(Order, 1) as order:
        order.total = 31
    assert not session.in_transaction()
    assert not finds_held()(other)
    assert elsewhere(TOTALS) == [(31,), (5,)]
    assert elsewhere(sa.select(Customer.name).where(Customer.id == 9)) == [("tag",)][undone:]


@pytest.mark.read_committed
def test_release_locks_after_it(session: Session, other: Session) -> None:
    with session.begin_nested():
        session.get_one_entity(Order, 1, ForUpdate)
    session.release_locks()
    assert not session.in_transaction()
    assert not finds_held()(other)


@pytest.mark.read_committed
def test_the_next_transaction_is_the_callers(session: Session, other: Session) -> None:
    with session.begin_nested():
        session.get_one(Customer, 1)
    session.rollback()
    with session.begin():
        session.get_one_entity(Order, 1, ForUpdate).total = 31
        session.save_changes()
        assert finds_held()(other)


@pytest.mark.read_committed
def test_a_savepoint_in_the_callers_transaction(session: Session, other: Session) -> None:
    with session.begin():
        with session.begin_nested():
            session.get_one(Customer, 1)
        session.get_one_entity(Order, 1, ForUpdate).total = 31
        session.save_changes()
        assert finds_held()(other)


@pytest.mark.read_committed
def test_inside_of_it_save_changes_flushes(session: Session, other: Session) -> None:
    with session.begin_nested():
        session.get_one_entity(Order, 1, ForUpdate).total = 31
        session.save_changes()
        assert session.in_nested_transaction()
        assert finds_held()(other)
    session.rollback()


@pytest.mark.read_committed
def test_what_was_released_can_be_undone(session: Session, elsewhere: Run) -> None:
    with session.begin_nested():
        session.get_one_entity(Order, 1, ForUpdate).total = 31
    session.rollback()
    assert elsewhere(TOTALS) == [(30,), (5,)]


@pytest.mark.read_committed
def test_a_second_savepoint(session: Session, other: Session, elsewhere: Run) -> None:
    with session.begin():
        with session.begin_nested():
            session.get_one_entity(Order, 1, ForUpdate).total = 31
        with session.begin_nested() as savepoint:
            session.get_one_entity(Order, 1, ForUpdate).total = 32
            session.flush()
            savepoint.rollback()
        assert session.get_one_entity(Order, 1, ForUpdate).total == 31
        assert finds_held()(other)
    assert elsewhere(TOTALS) == [(31,), (5,)]


@pytest.mark.read_committed
def test_a_savepoint_with_writes_before_the_lock(
    make_session: Callable[..., LockingSession], read_committed: dict[str, Any], elsewhere: Run
) -> None:
    session = make_session(**read_committed)
    with session.begin():
        with session.begin_nested():
            session.get_one(Customer, 1).name = "written"
        session.get_one_entity(Order, 1, ForUpdate).total = 31
        assert elsewhere(sa.select(Customer.name).where(Customer.id == 1)) == [("Ann",)]
    assert elsewhere(TOTALS) == [(31,), (5,)]


@pytest.mark.read_committed
def test_a_read_lock(session: Session) -> None:
    for lock in (SharedRead, LockOptions.SnapshotRead):
        with session.begin():
            with session.begin_nested():
                assert reads(lock)(session) == (30, [10, 20])
            assert dict(session.held_locks) == {(Order, (1,)): lock}
        assert not session.in_transaction()


@pytest.mark.read_committed
def test_a_refused_lock_costs_the_savepoint_alone(
    session: Session, other: Session, elsewhere: Run
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    session.begin()
    with pytest.raises(LockNotAvailable), session.begin_nested():
        session.get_one_entity(Order, 1, ForUpdate | LockOptions.NoWait)
    other.rollback()
    with session.begin_nested():
        session.get_one_entity(Order, 1, ForUpdate).total = 31
    session.commit()
    assert elsewhere(TOTALS) == [(31,), (5,)]


# --------------------------------------------------------------------------------------------------
# Session(twophase=True): XA START, or the database's equivalent, begins the transaction.

SnapshotRead = LockOptions.SnapshotRead
TOTAL = sa.select(Order.total).where(Order.id == 1)
PREPARED_AT_MOST = sa.text("SHOW max_prepared_transactions")  # of PostgreSQL; 0 by default


@pytest.fixture(params=["READ COMMITTED", "REPEATABLE READ"])
def session_two_phase(
    request: pytest.FixtureRequest, make_engine: Callable[..., sa.Engine]
) -> Iterator[LockingSession]:
    """Open a two-phase session on an engine at either level."""
    engine = make_engine(isolation_level=request.param)
    with LockingSession(engine, twophase=True) as session:
        yield session


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.not_databases(PIPELINED)
def test_a_snapshot_is_one(session_two_phase: LockingSession, elsewhere: Run) -> None:
    order = session_two_phase.get_one_entity(Order, 1, SnapshotRead)
    elsewhere(sa.update(Order).values(total=99), sa.update(Line).values(value=99))
    assert seen(order) == (30, [10, 20])
    assert seen(session_two_phase.get_one_document(Order, 2, SnapshotRead)) == (5, [5])
    session_two_phase.rollback()
    assert session_two_phase.get_one_entity(Order, 1, SnapshotRead).total == 99


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.not_databases(PIPELINED)
def test_a_snapshot_is_not_written_in(session_two_phase: LockingSession, elsewhere: Run) -> None:
    session_two_phase.get_one_entity(Order, 1, SnapshotRead).total = 31
    with pytest.raises(WrongIsolation, match="read-only"):
        session_two_phase.flush()
    session_two_phase.rollback()
    assert elsewhere(TOTAL) == [(30,)]


# The locks that a server keeps between the two phases: MySQL releases all locks of a transaction
# that wrote nothing, and MariaDB the shared locks of one that wrote.
KEPT = {
    "postgresql": {(Order, (1,)): ForUpdate, (Order, (2,)): SharedRead},
    "mysql": {},
    "mariadb": {(Order, (1,)): ForUpdate},
}


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.not_databases(PIPELINED)
def test_a_prepared_transaction_holds_its_locks_until_the_second_phase(
    documents: Database, session_two_phase: LockingSession, other: LockingSession, elsewhere: Run
) -> None:
    if documents.name == "postgresql" and elsewhere(PREPARED_AT_MOST) == [("0",)]:
        pytest.skip("this server prepares no transactions")
    outcomes: list[str] = []
    sa.event.listen(session_two_phase, "locks_released", lambda *about: outcomes.append(about[-1]))
    session_two_phase.get_one_entity(Order, 1, SnapshotRead)
    session_two_phase.commit()
    for end, total, in_hand in (
        (session_two_phase.rollback, 30, False),
        (session_two_phase.rollback, 30, True),
        (session_two_phase.commit, 31, False),
        (session_two_phase.commit, 32, True),
    ):
        order = session_two_phase.get_one_entity(Order, 1, ForUpdate)
        session_two_phase.get_one_entity(Order, 2, SharedRead)
        order.total = 31 + in_hand
        if in_hand:
            session_two_phase.connection()
        session_two_phase.prepare()
        assert dict(session_two_phase.held_locks) == KEPT[documents.name]
        assert finds_held()(other)
        order.total = 99
        with pytest.raises(InvalidRequestError, match="prepared"):
            session_two_phase.flush()
        with pytest.raises(InvalidRequestError, match="prepared"):
            session_two_phase.get_entity(Order, 1, ForUpdate)
        assert dict(session_two_phase.held_locks) == KEPT[documents.name]
        end()
        assert not session_two_phase.held_locks
        assert not finds_held()(other)
        assert elsewhere(TOTAL) == [(total,)]
    assert outcomes == ["committed", "rolled back", "rolled back", "committed", "committed"]


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.not_databases(PIPELINED)
@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.read_committed
def test_a_lender_commits_in_two_phases_and_begins_again(
    engine: sa.Engine, other: LockingSession
) -> None:
    with engine.connect() as connection, LockingSession(connection) as session:
        lent = connection.begin_twophase()
        session.get_one_entity(Order, 1, ForUpdate)
        lent.prepare()
        lent.commit()
        assert not session.held_locks
        connection.begin()
        session.get_one_entity(Order, 1, ForUpdate)
        assert finds_held()(other)
        connection.exec_driver_sql("COMMIT")
        assert not session.held_locks
        assert not finds_held()(other)


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.not_databases(PIPELINED)
@pytest.mark.databases("postgresql")
def test_a_flush_that_has_failed_in_a_savepoint_prepares_nothing(
    session_two_phase: LockingSession,
) -> None:
    session_two_phase.get_one_entity(Order, 1, ForUpdate)
    driver: Any = session_two_phase.connection().connection
    session_two_phase.begin_nested()
    session_two_phase.add(Order(id=1, total=0))
    with pytest.raises(DBAPIError):
        session_two_phase.flush()
    with closing(driver.cursor()) as cursor:
        cursor.execute("ROLLBACK")
    assert not session_two_phase.held_locks


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.not_databases(PIPELINED)
@pytest.mark.databases("mysql", "mariadb")
def test_the_victim_of_a_deadlock_is_rolled_back_by_its_first_rollback(
    documents: Database, make_engine: Callable[..., sa.Engine]
) -> None:
    """The server has rolled back already, and answers XA END with an error."""

    def make() -> LockingSession:
        return LockingSession(engine, twophase=True)

    engine = make_engine()
    alice, bob = Actor("alice", make, documents), Actor("bob", make, documents)
    try:
        alice.does(set_total(1, 7))
        bob.does(set_total(2, 7))
        loser, failure, winner, step = cross(alice, bob, lambda ident: set_total(ident, 8))
        assert isinstance(failure, DeadlockDetected)
        step.result()
        winner.does(LockingSession.commit)
        loser.does(LockingSession.rollback)
        loser.does(set_total(1, 9))
        loser.does(LockingSession.commit)
    finally:
        for actor in (alice, bob):
            actor.leave()
            actor.join()


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.not_databases(PIPELINED)
def test_a_session_that_refuses_everything_is_rolled_back(
    session_two_phase: LockingSession, other: LockingSession
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    session_two_phase.get_one_entity(Order, 2, ForUpdate)
    with pytest.raises(LockNotAvailable):
        session_two_phase.get_entity(Order, 1, ForUpdate | LockOptions.NoWait)
    session_two_phase.rollback()
    other.get_one_entity(Order, 2, ForUpdate | LockOptions.NoWait)
    other.rollback()
    session_two_phase.get_one_entity(Order, 1, ForUpdate | LockOptions.NoWait)
