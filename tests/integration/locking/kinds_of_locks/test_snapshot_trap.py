"""A lock that was waited for, under a snapshot from before the wait: fresh, or refused.

A header that is fresh over details that are not is what InnoDB's REPEATABLE READ gives when
any plain SELECT came before the lock, and PostgreSQL's whenever the other changed details alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockOptions, WrongIsolation
from tests.integration.locking.expectations import (
    FINE,
    LOCK_AFTER_SELECT,
    READER_AFTER_WRITER,
    REFUSED,
    WAITS,
    on,
)
from tests.integration.locking.steps import Seen, add_ten, move_five, read_again, reads, save
from tests.support.actors import Actor
from tests.support.models import Customer, Order
from tests.support.waits import wait_until_blocked

Session = Actor[LockingSession]
Step = Callable[[LockingSession], Any]
ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead

WRITERS = [(add_ten, (40, [20, 20])), (move_five, (30, [15, 15]))]
writers = pytest.mark.parametrize(("write", "expected"), WRITERS, ids=["add_ten", "move_five"])


def load_a_customer(session: LockingSession) -> Customer:
    """Do what every web request does before it comes to the point."""
    return session.get_one(Customer, 1)


@writers
def test_the_lock_comes_first(alice: Session, bob: Session, write: Step, expected: Seen) -> None:
    alice.does(write)
    queued = bob.starts(reads(ForUpdate))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == expected
    assert bob.does(read_again) == expected


@on(READER_AFTER_WRITER, WAITS)
@writers
def test_a_reader_comes_first(alice: Session, bob: Session, write: Step, expected: Seen) -> None:
    alice.does(write)
    queued = bob.starts(reads(SharedRead))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == expected
    assert bob.does(read_again) == expected


@on(LOCK_AFTER_SELECT, FINE)
@writers
def test_a_select_before_the_lock(
    alice: Session, bob: Session, write: Step, expected: Seen
) -> None:
    known = bob.does(load_a_customer)
    alice.does(write)
    queued = bob.starts(reads(ForUpdate))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == expected
    assert known.name == "Ann"


@on(LOCK_AFTER_SELECT, REFUSED)
@pytest.mark.parametrize("lock", [ForUpdate, SharedRead])
def test_a_select_before_the_lock_is_refused(session: LockingSession, lock: LockOptions) -> None:
    load_a_customer(session)
    with pytest.raises(WrongIsolation, match=r"Order 1 .* is open at REPEATABLE READ"):
        session.get_entity(Order, 1, lock)
    with pytest.raises(WrongIsolation, match=r"Order rows .* is open at REPEATABLE READ"):
        session.scalars(session.entity_set(Order, lock))
    assert load_a_customer(session).name == "Ann"  # nothing was sent: the transaction goes on


@pytest.fixture(params=["REPEATABLE READ", "SERIALIZABLE"])
def strict_session_factory(
    make_engine: Callable[..., sa.Engine], request: pytest.FixtureRequest
) -> sessionmaker[LockingSession]:
    """Make sessions on an engine whose isolation level is stricter than a lock can bear."""
    return sessionmaker(make_engine(isolation_level=request.param), class_=LockingSession)


@pytest.mark.not_databases("sqlite")  # it has one level
@writers
def test_the_lock_comes_first_on_a_strict_engine(
    alice: Session,
    dave: Callable[..., Session],
    strict_session_factory: Callable[[], LockingSession],
    write: Step,
    expected: Seen,
) -> None:
    strict = dave(strict_session_factory)
    alice.does(write)
    queued = strict.starts(reads(ForUpdate))
    wait_until_blocked(waiter=strict, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == expected


@pytest.mark.not_databases("sqlite")
@pytest.mark.parametrize("lock", [ForUpdate, SharedRead])
def test_a_select_before_the_lock_on_a_strict_engine_is_refused(
    strict_session_factory: Callable[[], LockingSession], lock: LockOptions
) -> None:
    with strict_session_factory() as session:
        load_a_customer(session)
        with pytest.raises(WrongIsolation):
            session.get_entity(Order, 1, lock)


@writers
def test_a_select_before_the_lock_at_read_committed(
    alice: Session,
    dave: Callable[..., Session],
    make_engine: Callable[..., sa.Engine],
    read_committed: dict[str, Any],
    write: Step,
    expected: Seen,
) -> None:
    engine = make_engine(**read_committed)
    careful = dave(sessionmaker(engine, class_=LockingSession))
    known = careful.does(load_a_customer)
    alice.does(write)
    queued = careful.starts(reads(ForUpdate))
    wait_until_blocked(waiter=careful, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == expected
    assert known.name == "Ann"
