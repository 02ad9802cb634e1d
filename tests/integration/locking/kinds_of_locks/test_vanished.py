"""Another session deletes a header: the lock returns None, and no object appears alive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import InvalidRequestError, NoResultFound
from sqlalchemy.orm import sessionmaker
from sqlalchemy.orm.exc import ObjectDeletedError

from sa_doclock import LockingSession, LockOptions
from tests.integration.locking.expectations import KINDS, Kind
from tests.integration.locking.steps import save, seen
from tests.support.actors import Actor
from tests.support.models import Clause, Entry, Lease, Line, Order
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.quick

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
LOCKS = [ForUpdate, SharedRead, LockOptions.SnapshotRead]
Run = Callable[..., list[Any]]


@pytest.fixture
def session_factory(engine: sa.Engine) -> sessionmaker[LockingSession]:
    """Return a factory of sessions whose objects outlive a commit."""
    return sessionmaker(engine, class_=LockingSession, expire_on_commit=False)


def delete(session: LockingSession) -> None:
    """Lock order 1 and delete it with its lines, without a commit."""
    session.delete(session.get_one_entity(Order, 1, ForUpdate))
    session.flush()


def delete_kind(kind: Kind) -> list[sa.Executable]:
    """Delete the document's rows, referring rows first."""
    details = [sa.delete(entity) for entity in (Line, Entry, Clause)]
    if kind.entity is Lease or kind.name == "base of joined":
        details.append(sa.delete(Lease.__table__))  # type: ignore[arg-type]
    return [*details, sa.delete(kind.table)]


@pytest.mark.parametrize("lock", LOCKS)
def test_it_was_deleted_before(
    session: LockingSession, elsewhere: Run, start_over: Callable[[], None], lock: LockOptions
) -> None:
    for kind in KINDS:
        known = session.get_one(kind.entity, kind.ident)
        session.commit()
        elsewhere(*delete_kind(kind))
        assert session.get_entity(kind.entity, kind.ident, lock) is None, kind
        assert known not in session, kind
        assert not session.held_locks, kind
        with pytest.raises((ObjectDeletedError, InvalidRequestError)):
            _ = known.total
        session.rollback()
        start_over()


def test_it_is_deleted_during_the_wait(
    alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    def get_to_know(session: LockingSession) -> tuple[Order, list[Line]]:
        order = session.get_one(Order, 1)
        known = order, list(order.lines)
        session.commit()
        return known

    def look(session: LockingSession) -> None:
        assert order not in session
        assert not session.held_locks
        with pytest.raises((ObjectDeletedError, InvalidRequestError)):
            _ = order.total
        with pytest.raises(ObjectDeletedError):
            _ = lines[0].value

    order, lines = bob.does(get_to_know)
    alice.does(delete)
    queued = bob.starts(lambda session: session.get_entity(Order, 1, ForUpdate))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() is None
    bob.does(look)


def test_it_is_deleted_and_comes_back_during_the_wait(
    alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    def replace(session: LockingSession) -> None:
        delete(session)
        session.add(Order(id=1, total=7, lines=[Line(id=8, name="new", value=7)]))
        session.flush()

    alice.does(replace)
    queued = bob.starts(lambda session: seen(session.get_one_entity(Order, 1, ForUpdate)))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == (7, [7])
    assert bob.does(lambda session: list(session.held_locks)) == [(Order, (1,))]


def test_it_is_deleted_and_stays_when_the_other_gives_up(
    alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    alice.does(delete)
    queued = bob.starts(lambda session: seen(session.get_one_entity(Order, 1, ForUpdate)))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(lambda session: session.rollback())
    assert queued.result() == (30, [10, 20])


def test_one_that_must_be_there(session: LockingSession) -> None:
    for lock in LOCKS:
        with pytest.raises(NoResultFound, match="there is no Order with the primary key 99"):
            session.get_one_entity(Order, 99, lock)
        session.rollback()


def test_a_set_leaves_nothing_stale(session: LockingSession, elsewhere: Run) -> None:
    known = session.get_one(Order, 1)
    session.commit()
    elsewhere(sa.delete(Line), sa.delete(Order).where(Order.id == 1))
    assert [order.id for order in session.scalars(session.entity_set(Order, ForUpdate))] == [2]
    with pytest.raises(ObjectDeletedError):
        _ = known.total
