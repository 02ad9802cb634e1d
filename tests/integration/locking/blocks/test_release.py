"""Each way to release a lock lets the next one in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions
from tests.integration.locking.steps import finds_held, locks, reads
from tests.support.actors import PATIENCE, Actor
from tests.support.databases import Database
from tests.support.models import Order
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.quick

Session = Actor[LockingSession]
End = Callable[[LockingSession], object]

ENDS: dict[str, End] = {
    "save_changes": lambda session: session.save_changes(),
    "release_locks": lambda session: session.release_locks(),
    "commit": lambda session: session.commit(),
    "rollback": lambda session: session.rollback(),
    "close": lambda session: session.close(),
    "reset": lambda session: session.reset(),
    "invalidate": lambda session: session.invalidate(),
}


def test_the_waiter_goes_on_after(alice: Session, bob: Session) -> None:
    for name, end in ENDS.items():
        alice.does(locks(Order, 1))
        queued = bob.starts(reads())
        wait_until_blocked(waiter=bob, holder=alice, step=queued)
        alice.does(end)
        queued.result()
        bob.does(lambda session: session.rollback())
        assert alice.does(lambda session: dict(session.held_locks)) == {}, name


@pytest.mark.parametrize("failure", [None, ValueError("the user's own")], ids=["well", "failed"])
def test_the_waiter_goes_on_after_the_end_of_a_block(
    alice: Session, bob: Session, failure: Exception | None
) -> None:
    inside, leave = threading.Event(), threading.Event()

    def block(session: LockingSession) -> None:
        with session.locked(Order, 1):
            inside.set()
            assert leave.wait(PATIENCE)
            if failure:
                raise failure

    step = alice.starts(block)
    assert inside.wait(PATIENCE)
    queued = bob.starts(reads())
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    leave.set()
    assert step.exception() is failure
    queued.result()


KILL: Mapping[str, str] = {
    "postgresql": "SELECT pg_terminate_backend({})",
    "mysql": "KILL {}",
    "mariadb": "KILL {}",
    "mssql": "KILL {}",
}


@pytest.fixture
def lose_connection(database: Database) -> Callable[[Session], None]:
    """Return a function that ends an actor's connection behind the actor's back."""

    def lose(actor: Session) -> None:
        if database.name in KILL:
            with database.observer().connect() as connection:
                connection.exec_driver_sql(KILL[database.name].format(actor.connection_id()))
        else:
            actor.does(lambda session: raw_connection(session).close())

    return lose


def raw_connection(session: LockingSession) -> sa.engine.interfaces.DBAPIConnection:
    """Return what is below all layers of SQLAlchemy."""
    connection = session.connection().connection.dbapi_connection
    assert connection is not None
    return connection


def test_the_waiter_goes_on_when_the_holders_connection_is_lost(
    alice: Session, bob: Session, lose_connection: Callable[[Session], None]
) -> None:
    alice.does(locks(Order, 1))
    queued = bob.starts(reads())
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    lose_connection(alice)
    queued.result()
    alice.does(lambda session: session.invalidate())  # close() would send a ROLLBACK


def test_who_lost_the_connection_can_lock_again(
    alice: Session, bob: Session, lose_connection: Callable[[Session], None]
) -> None:
    def change(session: LockingSession) -> None:
        session.get_one_entity(Order, 1).total = 99
        session.save_changes()

    alice.does(locks(Order, 1))
    lose_connection(alice)
    with pytest.raises(sa.exc.DBAPIError):
        alice.does(change)
    alice.does(lambda session: session.rollback())
    assert alice.does(lambda session: dict(session.held_locks)) == {}
    assert alice.does(reads()) == (30, [10, 20])
    assert bob.does(finds_held())


@pytest.mark.not_databases("sqlite")  # its waiting is a loop in the client
def test_a_waiter_whose_connection_is_lost_holds_nothing(
    alice: Session, bob: Session, lose_connection: Callable[[Session], None]
) -> None:
    alice.does(locks(Order, 1, LockOptions.ForUpdate))
    queued = bob.starts(locks(Order, 1))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    lose_connection(bob)
    assert isinstance(queued.exception(), sa.exc.DBAPIError)
    assert bob.does(lambda session: (session.in_transaction(), dict(session.held_locks))) == (
        False,
        {},
    )
    alice.does(lambda session: session.rollback())
    assert bob.does(reads()) == (30, [10, 20])
