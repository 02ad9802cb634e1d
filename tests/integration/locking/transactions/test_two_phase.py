"""Session(twophase=True): XA START, or what the database has for it, begins the transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
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
from tests.integration.locking.crosswise import cross, set_total
from tests.integration.locking.steps import FIRST, finds_held, seen
from tests.support.actors import Actor
from tests.support.databases import PIPELINED, Database
from tests.support.models import Line, Order

pytestmark = [
    pytest.mark.quick,
    pytest.mark.databases("postgresql", "mysql", "mariadb"),
    pytest.mark.not_databases(PIPELINED),  # which excludes twophase=True
]

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
SnapshotRead = LockOptions.SnapshotRead
Run = Callable[..., list[Any]]
TOTAL = sa.select(Order.total).where(Order.id == 1)
PREPARED_AT_MOST = sa.text("SHOW max_prepared_transactions")  # of PostgreSQL; 0 by default


@pytest.fixture(params=["READ COMMITTED", "REPEATABLE READ"])
def session(
    request: pytest.FixtureRequest, make_engine: Callable[..., sa.Engine]
) -> Iterator[LockingSession]:
    """Open a two-phase session on an engine at either level."""
    engine = make_engine(isolation_level=request.param)
    with LockingSession(engine, twophase=True) as session:
        yield session


def test_a_snapshot_is_one(session: LockingSession, elsewhere: Run) -> None:
    order = session.get_one_entity(Order, 1, SnapshotRead)
    elsewhere(sa.update(Order).values(total=99), sa.update(Line).values(value=99))
    assert seen(order) == FIRST
    assert seen(session.get_one_document(Order, 2, SnapshotRead)) == (5, [5])
    session.rollback()
    assert session.get_one_entity(Order, 1, SnapshotRead).total == 99


def test_a_snapshot_is_not_written_in(session: LockingSession, elsewhere: Run) -> None:
    session.get_one_entity(Order, 1, SnapshotRead).total = 31
    with pytest.raises(WrongIsolation, match="read-only"):
        session.flush()
    session.rollback()
    assert elsewhere(TOTAL) == [(30,)]


# What a server keeps between the two phases, whatever was written: MySQL gives up all locks of a
# transaction that has written nothing, and MariaDB the shared ones of one that has written.
KEPT = {
    "postgresql": {(Order, (1,)): ForUpdate, (Order, (2,)): SharedRead},
    "mysql": {},
    "mariadb": {(Order, (1,)): ForUpdate},
}


def test_a_prepared_transaction_holds_its_locks_until_the_second_phase(
    documents: Database, session: LockingSession, other: LockingSession, elsewhere: Run
) -> None:
    if documents.name == "postgresql" and elsewhere(PREPARED_AT_MOST) == [("0",)]:
        pytest.skip("this server prepares no transactions")
    outcomes: list[str] = []
    sa.event.listen(session, "locks_released", lambda *about: outcomes.append(about[-1]))
    session.get_one_entity(Order, 1, SnapshotRead)
    session.commit()
    for end, total, in_hand in (
        (session.rollback, 30, False),
        (session.rollback, 30, True),
        (session.commit, 31, False),
        (session.commit, 32, True),
    ):
        order = session.get_one_entity(Order, 1, ForUpdate)
        session.get_one_entity(Order, 2, SharedRead)
        order.total = 31 + in_hand
        if in_hand:
            session.connection()
        session.prepare()
        assert dict(session.held_locks) == KEPT[documents.name]
        assert finds_held()(other)
        order.total = 99
        with pytest.raises(InvalidRequestError, match="prepared"):
            session.flush()
        with pytest.raises(InvalidRequestError, match="prepared"):
            session.get_entity(Order, 1, ForUpdate)
        assert dict(session.held_locks) == KEPT[documents.name]
        end()
        assert not session.held_locks
        assert not finds_held()(other)
        assert elsewhere(TOTAL) == [(total,)]
    assert outcomes == ["committed", "rolled back", "rolled back", "committed", "committed"]


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


@pytest.mark.databases("postgresql")
def test_a_flush_that_has_failed_in_a_savepoint_prepares_nothing(session: LockingSession) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    driver: Any = session.connection().connection
    session.begin_nested()
    session.add(Order(id=1, total=0))
    with pytest.raises(DBAPIError):
        session.flush()
    with closing(driver.cursor()) as cursor:
        cursor.execute("ROLLBACK")
    assert not session.held_locks


@pytest.mark.databases("mysql", "mariadb")
def test_the_victim_of_a_deadlock_is_rolled_back_by_its_first_rollback(
    documents: Database, make_engine: Callable[..., sa.Engine]
) -> None:
    """The server has rolled back already, and answers XA END by an error."""

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


def test_a_session_that_refuses_everything_is_rolled_back(
    session: LockingSession, other: LockingSession
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    session.get_one_entity(Order, 2, ForUpdate)
    with pytest.raises(LockNotAvailable):
        session.get_entity(Order, 1, ForUpdate | LockOptions.NoWait)
    session.rollback()
    other.get_one_entity(Order, 2, ForUpdate | LockOptions.NoWait)
    other.rollback()
    session.get_one_entity(Order, 1, ForUpdate | LockOptions.NoWait)
