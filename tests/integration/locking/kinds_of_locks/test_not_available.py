"""NoWait and lock_timeout: a lock that another holds is given up, and the error says which."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.integration.locking.connections import set_patience
from tests.integration.locking.expectations import GOES_ON, READER_AFTER_WRITER, WAITS, on
from tests.integration.locking.steps import FIRST, TEN_MORE, add_ten, reads, save
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Lease, Order, Voucher
from tests.support.poolers import SETS_CONNECTION
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.quick

ForUpdate, SharedRead, NoWait = LockOptions.ForUpdate, LockOptions.SharedRead, LockOptions.NoWait

#: How not to wait: the tests' connections would wait longer than an actor's patience.
IMPATIENCE: dict[str, tuple[LockOptions, dict[str, Any], str]] = {
    "NoWait": (ForUpdate | NoWait, {}, "held by another transaction"),
    "zero": (ForUpdate, {"lock_timeout": 0}, "held by another transaction"),
    "0.2 s": (ForUpdate, {"lock_timeout": 0.2}, "not granted within 0.2 s"),
}


@pytest.mark.parametrize(("lock", "how", "why"), IMPATIENCE.values(), ids=IMPATIENCE.keys())
def test_what_another_holds_is_given_up(
    session: LockingSession,
    other: LockingSession,
    lock: LockOptions,
    how: dict[str, Any],
    why: str,
) -> None:
    other.get_entity(Voucher, (2024, 1), ForUpdate)
    with pytest.raises(LockNotAvailable) as caught:
        session.get_entity(Voucher, (2024, 1), lock, **how)
    assert not session.in_transaction()
    assert not session.held_locks
    error = caught.value
    assert (error.entity, error.ident) == (Voucher, (2024, 1))
    assert error.lock is not None
    assert ForUpdate in error.lock
    assert error.retryable
    assert isinstance(error, sa.exc.OperationalError)
    assert isinstance(error.orig, session.get_bind().dialect.loaded_dbapi.Error)
    assert re.match(rf"Voucher \(2024, 1\) FOR UPDATE( NOWAIT)? on \w+: {why}", str(error))


def test_the_session_can_go_on_at_once(session: LockingSession, other: LockingSession) -> None:
    other.get_entity(Order, 1, ForUpdate)
    with pytest.raises(LockNotAvailable):
        session.get_entity(Order, 1, ForUpdate | NoWait)
    other.release_locks()
    assert session.get_one_entity(Order, 1, ForUpdate | NoWait).total == 30
    session.save_changes()


def test_a_row_in_two_tables_is_given_up(
    database: Database, session: LockingSession, other: LockingSession
) -> None:
    other.get_entity(Lease, 1, ForUpdate)
    with pytest.raises(LockNotAvailable, match=f"^Lease 1 FOR UPDATE on {database.name}: not gran"):
        session.get_entity(Lease, 1, ForUpdate, lock_timeout=timedelta(milliseconds=1))


def test_a_lock_that_is_free_is_granted(session: LockingSession) -> None:
    assert session.get_one_entity(Order, 1, ForUpdate | NoWait).total == 30
    session.release_locks()
    assert session.get_one_entity(Order, 1, ForUpdate, lock_timeout=0.001).total == 30


def test_a_lock_that_comes_free_in_time_is_granted(
    alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    alice.does(add_ten)
    queued = bob.starts(reads(lock_timeout=29.5))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == TEN_MORE


@on(READER_AFTER_WRITER, WAITS)
@pytest.mark.parametrize(
    ("lock", "how"), [(SharedRead | NoWait, {}), (SharedRead, {"lock_timeout": 0.2})]
)
def test_a_reader_gives_up_as_well(
    session: LockingSession, other: LockingSession, lock: LockOptions, how: dict[str, Any]
) -> None:
    other.get_entity(Order, 1, ForUpdate)
    with pytest.raises(LockNotAvailable, match="Order 1 SHARED READ"):
        session.get_entity(Order, 1, lock, **how)


@on(READER_AFTER_WRITER, GOES_ON)
def test_a_reader_that_need_not_wait_gets_what_it_asked(
    session: LockingSession, other: LockingSession
) -> None:
    add_ten(other)
    assert reads(SharedRead | NoWait)(session) == FIRST
    session.rollback()
    assert reads(SharedRead, lock_timeout=0.2)(session) == FIRST


def test_a_set_gives_up_as_a_whole(
    database: Database, session: LockingSession, other: LockingSession
) -> None:
    other.get_entity(Order, 2, ForUpdate)
    with pytest.raises(LockNotAvailable, match=f"Order rows FOR UPDATE NOWAIT on {database.name}"):
        session.scalars(session.entity_set(Order, ForUpdate | NoWait)).all()
    assert not session.in_transaction()


@SETS_CONNECTION
def test_the_servers_own_limit_is_reported(
    engine: sa.Engine, session: LockingSession, make_session: Callable[..., LockingSession]
) -> None:
    set_patience(engine, 1)
    other = make_session()
    other.get_entity(Order, 1, ForUpdate)
    with pytest.raises(LockNotAvailable, match="not granted within the server's own limit"):
        session.get_entity(Order, 1, ForUpdate)
