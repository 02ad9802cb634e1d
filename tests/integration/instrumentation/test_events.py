"""The events of locks, as a recording listener receives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import Session

from sa_doclock import (
    DeadlockDetected,
    LockFailed,
    LockingSession,
    LockLost,
    LockNotAvailable,
    LockOptions,
)
from sa_doclock.events import ReleasedLock
from tests.integration.locking.steps import add_ten, cross, locks, set_total
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Customer, Order, Voucher

pytestmark = [pytest.mark.quick, pytest.mark.read_committed]

SharedRead, NoWait = LockOptions.SharedRead, LockOptions.NoWait


NAMES = ("lock_acquired", "lock_failed", "locks_released")


class Heard:
    """The events that listeners received, in order, each with its session."""

    def __init__(self) -> None:
        self.acquired: list[tuple[Any, LockOptions]] = []
        self.failed: list[LockFailed] = []
        self.released: list[tuple[list[tuple[Any, LockOptions]], str]] = []
        self.waits: list[float | None] = []
        self.held: list[float] = []
        self.sessions: list[Session] = []

    @property
    def names(self) -> tuple[int, int, int]:
        """The number of events of each of the three kinds."""
        return len(self.acquired), len(self.failed), len(self.released)

    def lock_acquired(
        self, session: Session, document: Any, lock: LockOptions, waited: float
    ) -> None:
        self.sessions.append(session)
        self.acquired.append((document, lock))
        self.waits.append(waited)

    def lock_failed(self, session: Session, error: LockFailed, waited: float | None) -> None:
        self.sessions.append(session)
        self.failed.append(error)
        self.waits.append(waited)

    def locks_released(
        self, session: Session, released: Sequence[ReleasedLock], outcome: str
    ) -> None:
        self.sessions.append(session)
        self.released.append(([(one.document, one.lock) for one in released], outcome))
        self.held += [one.held for one in released]


@contextmanager
def hearing(target: Any) -> Iterator[Heard]:
    """Attach the listeners for the block."""
    heard = Heard()
    for name in NAMES:
        event.listen(target, name, getattr(heard, name))
    yield heard
    for name in NAMES:
        event.remove(target, name, getattr(heard, name))


# --------------------------------------------------------------------------------------------------
# The events of locks: which are reported, and with which data.

ForUpdate = LockOptions.ForUpdate
ONE, TWO = (Order, (1,)), (Order, (2,))


def test_a_lock_and_its_end(session: LockingSession) -> None:
    with hearing(session) as heard:
        order = session.get_one_entity(Order, 1, ForUpdate)
        assert heard.names == (1, 0, 0)
        assert (
            session.get_one_entity(Order, 1, ForUpdate) is order
        )  # held already: not reported again
        assert session.get_entity(Order, 2) is not None  # no lock
        assert heard.names == (1, 0, 0)
        session.commit()
    assert heard.acquired == [(ONE, ForUpdate)]
    assert heard.released == [([(ONE, ForUpdate)], "committed")]
    assert heard.sessions == [session, session]
    assert heard.waits[0] is not None
    assert heard.waits[0] > 0
    assert heard.held[0] > 0


def test_a_lock_with_a_modifier_is_held_like_any_other(session: LockingSession) -> None:
    with hearing(session) as heard:
        session.get_one_entity(Voucher, (2024, 1), ForUpdate | NoWait)
        session.rollback()
    document = (Voucher, (2024, 1))
    assert heard.acquired == [(document, ForUpdate | NoWait)]
    assert heard.released == [([(document, ForUpdate)], "rolled back")]


def test_many_are_reported_one_by_one_and_let_go_together(session: LockingSession) -> None:
    with hearing(session) as heard:
        session.get_entities(Order, [2, 1, 99], ForUpdate)
        session.rollback()
        assert session.scalars(session.entity_set(Order, ForUpdate)).all()
        session.close()
    assert sorted(heard.acquired, key=str) == [(ONE, ForUpdate)] * 2 + [(TWO, ForUpdate)] * 2
    for released, outcome in heard.released:
        assert sorted(released, key=str) == [(ONE, ForUpdate), (TWO, ForUpdate)]
        assert outcome == "rolled back"
    assert len(heard.released) == 2
    assert len(heard.held) == 4
    assert min(heard.held) > 0


def test_what_is_not_there_is_not_reported(session: LockingSession) -> None:
    with hearing(session) as heard:
        assert session.get_entity(Order, 99, ForUpdate) is None
        session.commit()
        session.get_entity(Order, 1)
        session.commit()
        session.add(Customer(id=9, name="new"))
        session.commit()
    assert heard.names == (0, 0, 0)


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (LockingSession.commit, "committed"),
        (LockingSession.save_changes, "committed"),
        (LockingSession.rollback, "rolled back"),
        (LockingSession.release_locks, "rolled back"),
        (LockingSession.close, "rolled back"),
        (LockingSession.reset, "rolled back"),
    ],
)
def test_how_a_transaction_can_end(
    session: LockingSession, end: Callable[[LockingSession], None], outcome: str
) -> None:
    with hearing(session) as heard:
        session.get_one_entity(Order, 1, ForUpdate).total = 31
        end(session)
        end(session)
    assert heard.released == [([(ONE, ForUpdate)], outcome)]


def test_a_block(session: LockingSession) -> None:
    with hearing(session) as heard:
        with session.locked(Order, 1):
            assert heard.released == []
        with pytest.raises(ZeroDivisionError), session.locked(Order, 2):
            raise ZeroDivisionError
    assert heard.released == [
        ([(ONE, ForUpdate)], "committed"),
        ([(TWO, ForUpdate)], "rolled back"),
    ]


def test_a_savepoint_gives_up_what_was_locked_in_it(session: LockingSession) -> None:
    with hearing(session) as heard:
        session.get_one_entity(Order, 1, ForUpdate)
        savepoint = session.begin_nested()
        session.get_one_entity(Order, 2, ForUpdate)
        savepoint.rollback()
        assert heard.released == [([(TWO, ForUpdate)], "rolled back")]
        with session.begin_nested():
            session.get_one_entity(Voucher, (2024, 1), ForUpdate)
        assert len(heard.released) == 1
        session.commit()
    rest = [(ONE, ForUpdate), ((Voucher, (2024, 1)), ForUpdate)]
    assert heard.released[1:] == [(rest, "committed")]


def test_a_failure_is_reported_before_it_comes_out(
    session: LockingSession, other: LockingSession
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    with hearing(session) as heard, pytest.raises(LockNotAvailable) as caught:
        session.get_entity(Order, 1, ForUpdate, lock_timeout=0.05)
    assert heard.failed == [caught.value]
    assert heard.waits == [caught.value.waited]
    assert (heard.failed[0].entity, heard.failed[0].ident) == (Order, 1)
    assert heard.failed[0].lock is ForUpdate
    assert heard.names == (0, 1, 0)


@pytest.mark.not_databases("sqlite")
def test_a_failure_in_a_set_is_reported(session: LockingSession, other: LockingSession) -> None:
    other.get_one_entity(Order, 2, ForUpdate)
    with hearing(session) as heard:
        session.get_one_entity(Order, 1, ForUpdate)
        with pytest.raises(LockNotAvailable), session.begin_nested():
            session.scalars(session.entity_set(Order, ForUpdate | NoWait)).all()
        session.commit()
    assert [(error.entity, error.ident, error.lock) for error in heard.failed] == [
        (Order, None, ForUpdate | NoWait)
    ]
    assert heard.released == [([(ONE, ForUpdate)], "committed")]


def test_a_failed_commit_is_a_rollback(session: LockingSession) -> None:
    with hearing(session) as heard:
        session.get_one_entity(Order, 1, ForUpdate)
        session.add(Customer(id=1, name="there already"))
        with pytest.raises(sa.exc.IntegrityError):
            session.commit()
        session.rollback()
    assert [outcome for _, outcome in heard.released] in (["rolled back"], ["lost"])


def test_a_listener_may_ask_what_was_locked(session: LockingSession) -> None:
    held: list[Any] = []

    def note(reported: LockingSession, document: Any, *_: object) -> None:
        assert reported is session
        held.append((document, dict(session.held_locks)))

    sa.event.listen(session, "lock_acquired", note)
    add_ten(session)
    assert held == [(ONE, {ONE: ForUpdate})]


def test_a_listener_that_fails_is_a_lock_that_has_failed(session: LockingSession) -> None:
    def refuse(*_: object) -> None:
        raise KeyError("of a listener")

    sa.event.listen(session, "lock_acquired", refuse)
    with pytest.raises(KeyError, match="of a listener"):
        session.get_entity(Order, 1, ForUpdate)
    assert not session.in_transaction()
    assert session.held_locks == {}


# --------------------------------------------------------------------------------------------------
# Events of locks that the server dropped by itself, and the listeners that receive them.

KILL = {
    "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend({})"),
    "mysql": ("SELECT CONNECTION_ID()", "KILL {}"),
    "mariadb": ("SELECT CONNECTION_ID()", "KILL {}"),
}


def kill(database: Database, session: LockingSession) -> None:
    ask, end = KILL[database.name]
    own = session.connection().exec_driver_sql(ask).scalar_one()
    with database.observer().connect() as connection:
        connection.exec_driver_sql(end.format(own))


@pytest.mark.databases(*KILL)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_with_the_connection(database: Database, session: LockingSession) -> None:
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
def test_with_a_socket_that_psycopg_has_found_closed(session: LockingSession) -> None:
    """psycopg raises this if a reset comes at some moments; the connection is not "closed"."""

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


def test_with_the_connection_that_the_program_gave_up(session: LockingSession) -> None:
    with hearing(session) as heard:
        session.get_one_entity(Order, 1, ForUpdate)
        session.connection().invalidate()
        assert not session.held_locks
        session.rollback()
        session.get_one_entity(Order, 1, ForUpdate)
        session.invalidate()
    assert heard.released[0] == ([(ONE, ForUpdate)], "lost")
    assert [released for released, _ in heard.released] == [[(ONE, ForUpdate)]] * 2


@pytest.mark.not_databases("sqlite")  # there is one lock per file
def test_with_a_transaction_that_was_ended_as_a_deadlock(
    alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    alice.does(set_total(1, 31))
    bob.does(set_total(2, 6))
    with hearing(LockingSession) as heard:
        loser, failure, winner, step = cross(alice, bob, lambda ident: locks(Order, ident))
        assert isinstance(failure, DeadlockDetected)
        step.result()
        for actor in (loser, winner):
            actor.does(lambda session: session.rollback())
    mine, theirs = (ONE, TWO) if loser is alice else (TWO, ONE)
    assert heard.failed == [failure]
    assert heard.acquired == [(mine, ForUpdate)]  # the winner now has both
    assert heard.released == [
        ([(mine, ForUpdate)], "lost"),
        ([(theirs, ForUpdate), (mine, ForUpdate)], "rolled back"),
    ]


@pytest.mark.databases("postgresql")
def test_with_a_transaction_that_an_error_has_aborted(
    session: LockingSession, other: LockingSession
) -> None:
    """PostgreSQL seems to release the rows to others at once."""
    other.get_one_entity(Order, 1, ForUpdate)
    with hearing(session) as heard:
        session.begin()
        session.get_one_entity(Order, 2, ForUpdate)
        with pytest.raises(LockNotAvailable):
            session.get_entity(Order, 1, ForUpdate, lock_timeout=0)
        session.rollback()
    assert [released for released, _ in heard.released] == [[(TWO, ForUpdate)]]


@pytest.mark.databases("mysql", "mariadb")
def test_not_with_one_that_innodb_keeps(session: LockingSession, other: LockingSession) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    with hearing(session) as heard:
        session.begin()
        session.get_one_entity(Order, 2, ForUpdate)
        with pytest.raises(LockNotAvailable):
            session.get_entity(Order, 1, ForUpdate, lock_timeout=0)
        assert heard.released == []
        session.rollback()
    assert heard.released == [([(TWO, ForUpdate)], "rolled back")]


@pytest.mark.not_databases("sqlite")  # there is one lock per file
def test_another_session_is_not_reported(session: LockingSession, other: LockingSession) -> None:
    with hearing(other) as heard:
        session.get_one_entity(Order, 1, ForUpdate)
        with (
            suppress(LockNotAvailable),
            session.begin_nested(),
            LockingSession(session.bind) as third,
        ):
            third.get_entity(Order, 1, ForUpdate, lock_timeout=0)
        session.rollback()
        assert heard.names == (0, 0, 0)
        other.get_one_entity(Order, 1, ForUpdate)
    assert heard.names == (1, 0, 0)


def test_a_failing_listener_loses_no_promise(session: LockingSession) -> None:
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


def test_the_locks_are_gone_when_it_is_reported(
    session: LockingSession, other: LockingSession
) -> None:
    """The event follows their release, and the on_commit() functions run after it."""
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
