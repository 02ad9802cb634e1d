"""A lock_timeout that is longer than the server's own limit for locks: it goes on waiting."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.integration.locking.connections import set_patience
from tests.integration.locking.steps import TEN_MORE, add_ten, finds_held, locks, reads, save
from tests.integration.timeouts.ways import WAYS, hold
from tests.support.actors import PATIENCE, Actor
from tests.support.models import Order
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.databases("mysql", "mariadb")

ForUpdate = LockOptions.ForUpdate
Session = LockingSession
Dave = Callable[..., Actor[Session]]


class Attempts:
    """Counts the locking statements of an engine."""

    def __init__(self, engine: sa.Engine) -> None:
        self.statements: list[str] = []
        self.second = threading.Event()
        event.listen(engine, "before_cursor_execute", self._note)

    def _note(self, _: object, __: object, statement: str, *___: object) -> None:
        if "FOR UPDATE" in statement:
            self.statements.append(statement)
            if len(self.statements) > 1:
                self.second.set()


@pytest.fixture
def impatient(make_engine: Callable[..., sa.Engine], read_committed: dict[str, Any]) -> sa.Engine:
    """Make an engine whose server ends each wait for a lock after a second."""
    engine = make_engine(**read_committed)
    set_patience(engine, 1)
    return engine


@pytest.fixture
def attempts(impatient: sa.Engine) -> Attempts:
    return Attempts(impatient)


@pytest.fixture
def bert(impatient: sa.Engine, dave: Dave) -> Actor[Session]:
    """Bring an actor on who uses that engine."""
    return dave(lambda: LockingSession(impatient))


@pytest.mark.databases("mysql")
def test_a_wait_that_the_server_has_ended_goes_on(
    attempts: Attempts, alice: Actor[Session], bert: Actor[Session]
) -> None:
    alice.does(add_ten)
    queued = bert.starts(reads(lock_timeout=29.5))
    assert attempts.second.wait(PATIENCE)
    wait_until_blocked(waiter=bert, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == TEN_MORE
    assert "MAX_EXECUTION_TIME(29500)" in attempts.statements[0]
    assert "MAX_EXECUTION_TIME(2" in attempts.statements[1]
    assert attempts.statements[1] != attempts.statements[0]  # what is left


@pytest.mark.databases("mysql")
def test_what_was_done_before_in_the_transaction_stays(
    attempts: Attempts,
    alice: Actor[Session],
    bert: Actor[Session],
    elsewhere: Callable[..., list[Any]],
) -> None:
    def work(session: Session) -> None:
        with session.begin():
            session.get_one_entity(Order, 2, ForUpdate).total = 6
            session.flush()
            session.get_one_entity(Order, 1, ForUpdate, lock_timeout=29).total = 31

    alice.does(locks(Order, 1))
    queued = bert.starts(work)
    assert attempts.second.wait(PATIENCE)
    assert alice.does(lambda session: session.held_locks) == {(Order, (1,)): ForUpdate}
    alice.does(lambda session: session.rollback())
    queued.result()
    totals = sa.select(Order.id, Order.total).order_by(Order.id)
    assert elsewhere(totals) == [(1, 31), (2, 6)]


@pytest.mark.slow
@pytest.mark.databases("mysql")
def test_the_limit_ends_the_second_wait_as_well(
    attempts: Attempts, bert: Actor[Session], other: Session
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    error = bert.starts(locks(Order, 1, lock_timeout=3.1)).exception()
    assert isinstance(error, LockNotAvailable)
    assert "not granted within 3.1 s" in str(error)
    assert error.waited >= 3.1
    assert len(attempts.statements) > 2
    assert not any(statement.endswith("NOWAIT") for statement in attempts.statements)


@pytest.mark.databases("mysql")
def test_a_server_limit_that_ends_a_wait_which_is_over_is_reported_as_ours(
    impatient: sa.Engine, bert: Actor[Session], other: Session
) -> None:
    @event.listens_for(impatient, "before_cursor_execute", retval=True)
    def without_limit(_: object, __: object, statement: str, parameters: Any, *___: Any) -> Any:
        return re.sub(r"/\*\+.*?\*/", "", statement), parameters  # then the server ends it later

    other.get_one_entity(Order, 1, ForUpdate)
    error = bert.starts(locks(Order, 1, lock_timeout=0.5)).exception()
    assert isinstance(error, LockNotAvailable)
    assert "not granted within 0.5 s" in str(error)


@pytest.mark.databases("mysql")
def test_without_a_limit_of_ours_the_servers_ends_it(
    attempts: Attempts, bert: Actor[Session], other: Session
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    with pytest.raises(LockNotAvailable, match="within the server's own limit"):
        bert.does(locks(Order, 1))
    assert len(attempts.statements) == 1


@pytest.mark.slow
@pytest.mark.databases("mariadb")
@pytest.mark.parametrize("seconds", [29, 28.5])
def test_the_limit_of_the_statement_takes_the_place_of_the_servers(
    impatient: sa.Engine,
    alice: Actor[Session],
    bert: Actor[Session],
    bob: Actor[Session],
    seconds: float,
) -> None:
    """Another, who came after bert and has the server's limit, has given up before."""
    alice.does(hold)
    queued = bert.starts(lambda session: WAYS["entity_set"](session, lock_timeout=seconds))
    wait_until_blocked(waiter=bert, holder=alice, step=queued)
    with pytest.raises(LockNotAvailable), LockingSession(impatient) as session:
        session.get_entity(Order, 1, ForUpdate)
    wait_until_blocked(waiter=bert, holder=alice, step=queued)
    alice.does(lambda session: session.rollback())
    assert len(queued.result()) == 2
    assert bob.does(finds_held())
