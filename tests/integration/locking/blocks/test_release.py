"""Ways to take and release a lock: plain, scoped, nested, by workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingScopedSession, LockingSession, LockMisuse, LockOptions
from tests.integration.locking.steps import add_ten, finds_held, locks, reads, save
from tests.support.actors import PATIENCE, Actor
from tests.support.databases import Database
from tests.support.models import Customer, Order
from tests.support.poolers import ENDS_CONNECTION
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.quick


# --------------------------------------------------------------------------------------------------
# Each way to release a lock lets the next waiter in.

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


@ENDS_CONNECTION
def test_the_waiter_goes_on_after(alice: Session, bob: Session) -> None:
    for name, end in ENDS.items():
        alice.does(locks(Order, 1))
        queued = bob.starts(reads())
        wait_until_blocked(waiter=bob, holder=alice, step=queued)
        alice.does(end)
        queued.result()
        bob.does(lambda session: session.rollback())
        assert alice.does(lambda session: dict(session.held_locks)) == {}, name


@ENDS_CONNECTION
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
    """Return a function that ends an actor's connection without the actor's knowledge."""

    def lose(actor: Session) -> None:
        if database.name in KILL:
            with database.observer().connect() as connection:
                connection.exec_driver_sql(KILL[database.name].format(actor.connection_id()))
        else:
            actor.does(lambda session: raw_connection(session).close())

    return lose


def raw_connection(session: LockingSession) -> sa.engine.interfaces.DBAPIConnection:
    """Return the driver's connection, below all layers of SQLAlchemy."""
    connection = session.connection().connection.dbapi_connection
    assert connection is not None
    return connection


@ENDS_CONNECTION
def test_the_waiter_goes_on_when_the_holders_connection_is_lost(
    alice: Session, bob: Session, lose_connection: Callable[[Session], None]
) -> None:
    alice.does(locks(Order, 1))
    queued = bob.starts(reads())
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    lose_connection(alice)
    queued.result()
    alice.does(lambda session: session.invalidate())  # close() would send a ROLLBACK


@ENDS_CONNECTION
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


@ENDS_CONNECTION
@pytest.mark.not_databases("sqlite")  # its wait is a loop in the client
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


# --------------------------------------------------------------------------------------------------
# A listener that asks for a lock while its session takes another one is refused.

ForUpdate = LockOptions.ForUpdate
Lock = Callable[[LockingSession], Any]


@contextmanager
def when_loaded(lock: Lock) -> Iterator[None]:
    """Call the function for each loaded order, during the SELECT that loads it."""

    def listen(_order: Order, context: Any) -> None:
        lock(context.session)

    event.listen(Order, "load", listen)
    try:
        yield
    finally:
        event.remove(Order, "load", listen)


@contextmanager
def when_executed(lock: Lock) -> Iterator[None]:
    """Call the function at the first statement of a session, before it is sent."""
    called: list[Any] = []

    def listen(state: Any) -> None:
        if not called:
            called.append(state)
            lock(state.session)

    event.listen(LockingSession, "do_orm_execute", listen)
    try:
        yield
    finally:
        event.remove(LockingSession, "do_orm_execute", listen)


WAYS: dict[str, Lock] = {
    "get_entity": lambda session: session.get_entity(Customer, 1, ForUpdate),
    "get_entities": lambda session: session.get_entities(Customer, [1, 2], ForUpdate),
    "entity_set": lambda session: session.scalars(session.entity_set(Customer, ForUpdate)).all(),
    "lock_key": lambda session: session.lock_key("inner"),
}


@pytest.mark.parametrize("inner", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("when", [when_loaded, when_executed])
def test_it_is_refused_before_anything_is_sent(
    session: LockingSession,
    elsewhere: Callable[..., list[Any]],
    when: Callable[[Lock], Any],
    inner: Lock,
) -> None:
    with (
        when(inner),
        pytest.raises(LockMisuse, match="while the session was still locking Order 1"),
    ):
        session.get_entity(Order, 1, ForUpdate)
    assert dict(session.held_locks) == {}
    assert not session.in_transaction()  # the outer call had opened it
    assert elsewhere(sa.update(Order).values(remark="free"), sa.select(Order.remark).distinct())


@pytest.mark.parametrize("inner", WAYS.values(), ids=WAYS)
def test_a_listener_that_catches_it_spoils_nothing(session: LockingSession, inner: Lock) -> None:
    def try_it(of_session: LockingSession) -> None:
        with pytest.raises(LockMisuse):
            inner(of_session)

    with when_loaded(try_it):
        order = session.get_one_entity(Order, 1, ForUpdate)
    assert dict(session.held_locks) == {(Order, (1,)): ForUpdate}
    inner(session)
    order.total += 1
    session.save_changes()


def test_what_is_held_already_may_be_asked_for(session: LockingSession) -> None:
    customer = session.get_one_entity(Customer, 1, ForUpdate)
    found: list[Any] = []
    with when_loaded(lambda s: found.append(s.get_entity(Customer, 1, ForUpdate))):
        session.get_one_entity(Order, 1, ForUpdate)
    assert found == [customer]


def test_another_session_may_lock_meanwhile(session: LockingSession, other: LockingSession) -> None:
    if session.get_bind().dialect.name == "sqlite":  # there the lock is the file's
        pytest.skip("one write lock for the file")

    def lock_elsewhere(_session: LockingSession) -> None:
        other.get_one_entity(Customer, 1, ForUpdate)

    with when_loaded(lock_elsewhere):
        session.get_one_entity(Order, 1, ForUpdate)
    assert dict(session.held_locks) == {(Order, (1,)): ForUpdate}
    assert dict(other.held_locks) == {(Customer, (1,)): ForUpdate}


# --------------------------------------------------------------------------------------------------
# A LockingScopedSession takes locks through its session, one session for each scope.

FOR_UPDATE = LockOptions.ForUpdate
NO_WAIT = LockOptions.ForUpdate | LockOptions.NoWait
ORDER_1 = (Order, (1,))
Scoped = LockingScopedSession[LockingSession]


def add_one(scoped: Scoped) -> int:
    with scoped.locked(Order, 1) as order:
        assert dict(scoped.held_locks) == {ORDER_1: FOR_UPDATE}
        order.total += 1
    total = scoped.get_one(Order, 1).total
    scoped.remove()
    return total


def test_a_block_waits_and_reads_what_the_holder_wrote(
    session_factory: sessionmaker[LockingSession], alice: Actor[Any], bob: Actor[Any]
) -> None:
    scoped = LockingScopedSession(session_factory)
    alice.does(add_ten)
    queued = bob.starts(lambda _: add_one(scoped))  # his thread is a scope
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == 41
    assert not scoped.registry.has()  # this thread has not used it


def test_every_method_is_that_of_the_session(
    session_factory: sessionmaker[LockingSession],
) -> None:
    scoped = LockingScopedSession(session_factory)
    events: list[str] = []
    order = scoped.get_one_entity(Order, 1)
    assert not scoped.held_locks
    scoped.rollback()
    assert scoped.lock(order, FOR_UPDATE) is order
    assert scoped.get_entity(Order, 1, FOR_UPDATE) is order
    assert [one.id for one in scoped.get_entities(Order, [2, 1], order="given")] == [2, 1]
    scoped.release_locks()
    with scoped.locked_document(Order, 1) as order:
        assert "lines" in vars(order)
        assert scoped.get_document(Order, 1) is scoped.get_one_document(Order, 1) is order
        scoped.on_commit(lambda: events.append("committed"))
    assert events == ["committed"]
    with scoped.locked_documents(Order, [2, 1]) as (two, one):
        assert [two, one] == scoped.get_documents(Order, [1, 2], order="key")[::-1]
    every = scoped.scalars(scoped.entity_set(Order, FOR_UPDATE).order_by(Order.id)).all()
    assert set(scoped.held_locks) == {(Order, (order.id,)) for order in every}
    with scoped.unguarded():
        one.total = 7
    scoped.lock_key("prices")
    scoped.save_changes()
    assert not scoped.held_locks
    assert scoped.scalar(sa.select(Order.total).where(Order.id == 1)) == 7
    scoped.remove()


def test_the_end_of_the_scope_releases_the_locks(
    session_factory: sessionmaker[LockingSession], other: LockingSession
) -> None:
    scoped = LockingScopedSession(session_factory)
    scoped.get_one_entity(Order, 1, FOR_UPDATE).total = 7
    scoped.remove()
    assert other.get_one_entity(Order, 1, NO_WAIT).total == 30


# --------------------------------------------------------------------------------------------------
# Workers that share the rows of a table with SkipLocked: each row goes to one worker.

WORKERS, ROWS = 4, range(3, 43)


def work(session: LockingSession) -> list[int]:
    """Process the orders one by one, until others hold all the rest."""
    done = []
    todo = Order.total == 0
    free = session.entity_set(Order, LockOptions.ForUpdate | LockOptions.SkipLocked)
    query = free.where(todo).order_by(Order.id).limit(1)
    while order := session.scalars(query).first():
        done.append(order.id)
        order.total += 1
        session.save_changes()
    session.rollback()
    return done


@pytest.mark.not_databases("sqlite")  # no row locks to skip
def test_each_row_is_done_once(
    enter: Callable[[str], Actor[LockingSession]], elsewhere: Callable[..., list[Any]]
) -> None:
    elsewhere(sa.insert(Order).values([{"id": n, "total": 0, "remark": ""} for n in ROWS]))
    steps = [enter(f"worker {n}").starts(work) for n in range(WORKERS)]
    done = [ident for step in steps for ident in step.result()]
    assert sorted(done) == list(ROWS)
    assert elsewhere(sa.select(Order.total).where(Order.id > 2).distinct()) == [(1,)]


def test_without_a_lock_two_workers_find_the_same(
    session: LockingSession, other: LockingSession
) -> None:
    query = sa.select(Order).order_by(Order.id).limit(1)
    kept = [worker.scalars(query).one() for worker in (session, other)]
    assert [order.id for order in kept] == [1, 1]
