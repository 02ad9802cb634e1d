"""Events of locks that the server gave up by itself, and the listeners that receive them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import DeadlockDetected, LockingSession, LockLost, LockNotAvailable, LockOptions
from tests.integration.instrumentation.hearing import hearing
from tests.integration.locking.crosswise import cross, set_total
from tests.integration.locking.steps import locks
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Order

pytestmark = pytest.mark.read_committed

ForUpdate = LockOptions.ForUpdate
Session = LockingSession
ONE, TWO = (Order, (1,)), (Order, (2,))
KILL = {
    "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend({})"),
    "mysql": ("SELECT CONNECTION_ID()", "KILL {}"),
    "mariadb": ("SELECT CONNECTION_ID()", "KILL {}"),
}


def kill(database: Database, session: Session) -> None:
    ask, end = KILL[database.name]
    own = session.connection().exec_driver_sql(ask).scalar_one()
    with database.observer().connect() as connection:
        connection.exec_driver_sql(end.format(own))


@pytest.mark.databases(*KILL)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_with_the_connection(database: Database, session: Session) -> None:
    with hearing(session) as heard:
        session.get_one_entity(Order, 1, ForUpdate)
        kill(database, session)
        with pytest.raises(sa.exc.DBAPIError):
            session.scalar(sa.text("SELECT 1"))
        assert heard.released == [([(ONE, ForUpdate)], "lost")]
        assert heard.held[0] > 0
        session.rollback()
        assert len(heard.released) == 1
        session.get_one_entity(Order, 2, ForUpdate)
        session.commit()
    assert heard.released[1:] == [([(TWO, ForUpdate)], "committed")]


@pytest.mark.databases("postgresql")
def test_with_a_socket_that_psycopg_has_found_closed(session: Session) -> None:
    """It raises this where the socket was reset at some moments; its connection is not "closed"."""

    def fail(_: Any, statement: str, *__: Any) -> None:
        driver.pgconn.send_query(statement.encode())
        raise psycopg.OperationalError("connection socket closed")

    with hearing(session) as heard:
        session.get_one_entity(Order, 1, ForUpdate)
        driver: Any = session.connection().connection.driver_connection
        event.listen(session.get_bind(), "do_execute", fail)
        with pytest.raises(LockLost, match="the connection to the server was lost"):
            session.scalar(sa.text("SELECT 1"))
        event.remove(session.get_bind(), "do_execute", fail)
        assert heard.released == [([(ONE, ForUpdate)], "lost")]
        session.rollback()
        session.get_one_entity(Order, 1, ForUpdate)
        assert session.connection().connection.driver_connection is not driver


def test_with_the_connection_that_the_program_gave_up(session: Session) -> None:
    with hearing(session) as heard:
        session.get_one_entity(Order, 1, ForUpdate)
        session.connection().invalidate()
        assert not session.held_locks
        session.rollback()
        session.get_one_entity(Order, 1, ForUpdate)
        session.invalidate()
    assert heard.released[0] == ([(ONE, ForUpdate)], "lost")
    assert [released for released, _ in heard.released] == [[(ONE, ForUpdate)]] * 2


@pytest.mark.not_databases("sqlite")  # the file's lock is one
def test_with_a_transaction_that_was_ended_as_a_deadlock(
    alice: Actor[Session], bob: Actor[Session]
) -> None:
    alice.does(set_total(1, 31))
    bob.does(set_total(2, 6))
    with hearing(Session) as heard:
        loser, failure, winner, step = cross(alice, bob, lambda ident: locks(Order, ident))
        assert isinstance(failure, DeadlockDetected)
        step.result()
        for actor in (loser, winner):
            actor.does(lambda session: session.rollback())
    mine, theirs = (ONE, TWO) if loser is alice else (TWO, ONE)
    assert heard.failed == [failure]
    assert heard.acquired == [(mine, ForUpdate)]  # the winner has both now
    assert heard.released == [
        ([(mine, ForUpdate)], "lost"),
        ([(theirs, ForUpdate), (mine, ForUpdate)], "rolled back"),
    ]


@pytest.mark.databases("postgresql")
def test_with_a_transaction_that_an_error_has_aborted(session: Session, other: Session) -> None:
    """PostgreSQL lets others have the rows at once, as far as anybody can tell."""
    other.get_one_entity(Order, 1, ForUpdate)
    with hearing(session) as heard:
        session.begin()
        session.get_one_entity(Order, 2, ForUpdate)
        with pytest.raises(LockNotAvailable):
            session.get_entity(Order, 1, ForUpdate, lock_timeout=0)
        session.rollback()
    assert [released for released, _ in heard.released] == [[(TWO, ForUpdate)]]


@pytest.mark.databases("mysql", "mariadb")
def test_not_with_one_that_innodb_keeps(session: Session, other: Session) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    with hearing(session) as heard:
        session.begin()
        session.get_one_entity(Order, 2, ForUpdate)
        with pytest.raises(LockNotAvailable):
            session.get_entity(Order, 1, ForUpdate, lock_timeout=0)
        assert heard.released == []
        session.rollback()
    assert heard.released == [([(TWO, ForUpdate)], "rolled back")]


@pytest.mark.not_databases("sqlite")  # the file's lock is one
def test_another_session_is_not_reported(session: Session, other: Session) -> None:
    with hearing(other) as heard:
        session.get_one_entity(Order, 1, ForUpdate)
        with suppress(LockNotAvailable), session.begin_nested(), Session(session.bind) as third:
            third.get_entity(Order, 1, ForUpdate, lock_timeout=0)
        session.rollback()
        assert heard.names == (0, 0, 0)
        other.get_one_entity(Order, 1, ForUpdate)
    assert heard.names == (1, 0, 0)


def test_a_failing_listener_loses_no_promise(session: Session) -> None:
    called: list[str] = []

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    event.listen(session, "locks_released", fail)
    session.get_one_entity(Order, 1, ForUpdate).total = 31
    session.on_commit(lambda: called.append("called"))
    with pytest.raises(ZeroDivisionError):
        session.commit()
    assert called == ["called"]
    event.remove(session, "locks_released", fail)
    session.rollback()
    assert session.get_one(Order, 1).total == 31
    assert not session.held_locks


def test_the_locks_are_gone_when_it_is_reported(session: Session, other: Session) -> None:
    """They are released when that is reported, and on_commit() functions come after."""
    reported: list[str] = []

    def lock_it(*_: Any) -> None:
        other.get_one_entity(Order, 1, ForUpdate | LockOptions.NoWait)
        other.rollback()
        reported.append("released")

    event.listen(session, "locks_released", lock_it)
    session.get_one_entity(Order, 1, ForUpdate).total = 31
    session.on_commit(lambda: reported.append("promised"))
    session.commit()
    assert reported == ["released", "promised"]
