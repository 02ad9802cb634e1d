"""Whatever ends a lock with a limit, the connection returns to the pool unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import product
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import DeadlockDetected, LockingSession, LockNotAvailable, LockOptions
from tests.integration.locking.connections import isolation_of, patience_of, set_patience
from tests.integration.locking.steps import cross, locks, locks_rows
from tests.integration.timeouts.ways import SHORT, WAYS, given_up, hold
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Customer, Lease, Order
from tests.support.poolers import SETS_CONNECTION
from tests.support.waits import wait_until_blocked

pytestmark = SETS_CONNECTION

ForUpdate = LockOptions.ForUpdate
Session = LockingSession
KILL = {"postgresql": "SELECT pg_terminate_backend({})", "mysql": "KILL {}", "mariadb": "KILL {}"}


class Interrupted(BaseException):
    """An exception in the middle of a statement, like that of Ctrl-C."""


class Stumbled(Exception):
    """An error that a listener of the application raises."""


@pytest.fixture
def engine(make_engine: Callable[..., sa.Engine], read_committed: dict[str, Any]) -> sa.Engine:
    """Make an engine whose limits differ from every default."""
    engine = make_engine(pool_size=1, max_overflow=1, **read_committed)
    set_patience(engine, 47)
    return engine


@pytest.fixture
def settings(engine: sa.Engine) -> Callable[[], tuple[Any, ...]]:
    """Return a function that queries the settings of a fresh connection."""

    def ask() -> tuple[Any, ...]:
        with engine.connect() as connection:
            return patience_of(connection), isolation_of(connection)

    return ask


@contextmanager
def raising(engine: sa.Engine, name: str, error: BaseException) -> Iterator[None]:
    """Fail before or after the first locking statement of the block."""

    def fail(_: object, __: object, statement: str, *___: object) -> None:
        if locks_rows(statement) or "BEGIN IMMEDIATE" in statement:
            raise error

    event.listen(engine, name, fail)
    try:
        yield
    finally:
        event.remove(engine, name, fail)


@pytest.mark.parametrize("name", ["before_cursor_execute", "after_cursor_execute"])
def test_an_error_in_the_midst_of_the_lock(
    engine: sa.Engine, session: Session, settings: Callable[[], Any], name: str
) -> None:
    for way in map(WAYS.__getitem__, ("get_entity", "of two tables", "entity_set")):
        way(session)
        session.rollback()
        before = settings()
        for error, limit in product((Interrupted, Stumbled), (5.5, 6)):
            with pytest.raises(error), raising(engine, name, error()):
                way(session, lock_timeout=limit)
            assert not session.in_transaction()
            assert settings() == before
        assert way(session, lock_timeout=5.5) is not None
        session.rollback()
        assert settings() == before


@pytest.mark.not_databases("sqlite")  # the first lock is the whole file's
@pytest.mark.parametrize("name", ["before_cursor_execute", "after_cursor_execute"])
def test_a_stumble_in_the_callers_transaction_leaves_its_own_limit(
    engine: sa.Engine, session: Session, name: str
) -> None:
    session.connection()
    WAYS["get_entities"](session)
    before = patience_of(session.connection())
    for way in ("of two tables", "set of two tables"):
        with pytest.raises(Stumbled), raising(engine, name, Stumbled()):
            WAYS[way](session, lock_timeout=5.5)
        assert patience_of(session.connection()) == before
    assert session.scalars(sa.select(Customer.name).order_by(Customer.id)).all() == ["Ann", "Ben"]


@pytest.mark.not_databases("sqlite")  # there is one lock per file
def test_a_deadlock(
    engine: sa.Engine,
    settings: Callable[[], Any],
    alice: Actor[Session],
    bob: Actor[Session],
) -> None:
    before = settings()
    alice.does(locks(Order, 1, lock_timeout=29.5))
    bob.does(locks(Order, 2, lock_timeout=29.5))
    loser, failure, winner, step = cross(
        alice, bob, lambda ident: locks(Order, ident, lock_timeout=29.5)
    )
    assert isinstance(failure, DeadlockDetected)
    assert failure.waited > 0
    step.result()
    for actor in (winner, loser):
        actor.does(lambda session: session.rollback())
    with engine.connect() as one, engine.connect() as other:
        for connection in (one, other):
            assert (patience_of(connection), isolation_of(connection)) == before


@pytest.mark.not_databases("sqlite")  # there is one lock per file
def test_a_time_out_after_other_locks(
    session: Session, other: Session, settings: Callable[[], Any]
) -> None:
    before = settings()
    other.get_one_entity(Lease, 1, ForUpdate)
    for way in ("of two tables", "some of two tables", "set of two tables"):
        session.get_one_entity(Order, 1, ForUpdate, lock_timeout=5.5)
        given_up(session, WAYS[way], lock_timeout=SHORT)
        session.rollback()
        assert settings() == before


@pytest.mark.databases(*KILL)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_connection_that_was_killed_while_it_waited(
    database: Database,
    settings: Callable[[], Any],
    alice: Actor[Session],
    bob: Actor[Session],
) -> None:
    before = settings()
    alice.does(hold)
    queued = bob.starts(locks(Order, 1, lock_timeout=29.5))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    with database.observer().connect() as connection:
        connection.exec_driver_sql(KILL[database.name].format(bob.server_pid()))
    failure = queued.exception()
    assert isinstance(failure, sa.exc.DBAPIError)
    assert failure.connection_invalidated
    alice.does(lambda session: session.rollback())
    assert bob.does(locks(Order, 1, lock_timeout=29.5)) is not None
    bob.does(lambda session: session.rollback())
    assert settings() == before


def test_no_listener_of_ours_is_left(session: Session, other: Session) -> None:
    hold(other)
    other.rollback()
    for way in WAYS.values():
        way(session, lock_timeout=5.5)
        session.rollback()
    for actor in (session, other):
        connection = actor.connection()
        names = ("before_cursor_execute", "after_cursor_execute", "commit", "rollback")
        before = {name: len(getattr(connection.dispatch, name)) for name in names}
        for way in WAYS.values():
            if way is not WAYS["locked"]:
                way(actor, lock_timeout=5.5)
        assert {name: len(getattr(connection.dispatch, name)) for name in names} == before
        actor.rollback()


@pytest.mark.not_databases("sqlite")
def test_nor_after_a_failure(session: Session, other: Session) -> None:
    hold(other)
    connection = session.connection()
    names = ("before_cursor_execute", "after_cursor_execute", "commit")
    before = {name: len(getattr(connection.dispatch, name)) for name in names}
    for limit in (0.05, 0, 1):
        with suppress(LockNotAvailable), session.begin_nested():
            session.get_entity(Order, 1, ForUpdate, lock_timeout=limit)
        # The listener that refuses a failed transaction stays until the transaction ends, and
        # exists once.
        for name in names:
            assert len(getattr(connection.dispatch, name)) - before[name] in (0, 1)
