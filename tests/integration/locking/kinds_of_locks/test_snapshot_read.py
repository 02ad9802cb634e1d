"""SnapshotRead: a consistent read that neither waits nor blocks, alone in its transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions, WrongIsolation
from tests.integration.locking.expectations import (
    GOES_ON,
    WAITS_AT_COMMIT,
    WRITER_AFTER_SNAPSHOT,
    on,
)
from tests.integration.locking.steps import (
    FIRST,
    TEN_MORE,
    add_ten,
    locks,
    read_again,
    reads,
    recorded,
    roll_back,
    save,
)
from tests.support.actors import Actor
from tests.support.models import Customer, Order
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.quick

Session = Actor[LockingSession]
SnapshotRead = LockOptions.SnapshotRead


def test_it_does_not_wait_for_a_writer(alice: Session, bob: Session) -> None:
    alice.does(add_ten)
    assert bob.does(reads(SnapshotRead)) == FIRST


@on(WRITER_AFTER_SNAPSHOT, GOES_ON)
def test_a_writer_does_not_wait_for_it(alice: Session, bob: Session) -> None:
    order = alice.does(locks(Order, 1, SnapshotRead))
    bob.does(add_ten)
    bob.does(save)
    assert alice.does(lambda _: (order.total, [line.value for line in order.lines])) == FIRST
    assert alice.does(read_again) == FIRST
    alice.does(roll_back)
    assert alice.does(reads(SnapshotRead)) == TEN_MORE


@on(WRITER_AFTER_SNAPSHOT, WAITS_AT_COMMIT)
def test_a_writer_waits_for_it_before_it_commits(alice: Session, bob: Session) -> None:
    alice.does(reads(SnapshotRead))
    bob.does(add_ten)
    queued = bob.starts(save)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    assert alice.does(read_again) == FIRST
    alice.does(roll_back)
    queued.result()


@on(WRITER_AFTER_SNAPSHOT, GOES_ON)
def test_documents_read_in_one_snapshot_belong_together(
    session: LockingSession, elsewhere: Callable[..., list[Any]]
) -> None:
    first = session.get_one_entity(Order, 1, SnapshotRead)
    elsewhere(sa.update(Order).values(total=99))
    second = session.get_one_entity(Order, 2, SnapshotRead)
    assert (first.total, second.total) == (30, 5)


def test_it_is_refused_in_a_transaction_that_is_open(session: LockingSession) -> None:
    session.get_one_entity(Order, 1, LockOptions.ForUpdate)
    with pytest.raises(WrongIsolation, match=r"Order 2 SNAPSHOT READ on .*: a snapshot starts"):
        session.get_entity(Order, 2, SnapshotRead)
    session.get_one_entity(Order, 1).total = 31  # nothing was sent: the transaction goes on
    session.save_changes()


@pytest.mark.not_databases("sqlite")  # sqlite3 reads outside of any transaction
def test_it_is_refused_after_a_plain_read(session: LockingSession) -> None:
    session.get_one(Order, 2)
    with pytest.raises(WrongIsolation):
        session.get_entity(Order, 1, SnapshotRead)


def test_another_lock_is_refused_after_it(session: LockingSession) -> None:
    session.get_one_entity(Order, 1, SnapshotRead)
    for lock in (LockOptions.ForUpdate, LockOptions.SharedRead):
        with pytest.raises(WrongIsolation, match="read-only"):
            session.get_entity(Order, 2, lock)
    assert session.get_one_entity(Order, 2, SnapshotRead).total == 5


def test_a_flush_after_it_is_refused_before_anything_is_sent(
    engine: sa.Engine, session: LockingSession, elsewhere: Callable[..., list[Any]]
) -> None:
    session.get_one_entity(Order, 1, SnapshotRead).total = 99
    with recorded(engine) as statements, pytest.raises(WrongIsolation, match="read-only"):
        session.save_changes()
    assert statements == []
    session.rollback()
    assert elsewhere(sa.select(Order.total).where(Order.id == 1)) == [(30,)]


def test_a_bulk_write_after_it_is_refused_before_it_is_sent(
    engine: sa.Engine, session: LockingSession, elsewhere: Callable[..., list[Any]]
) -> None:
    session.get_one_entity(Order, 1, SnapshotRead)
    with recorded(engine) as statements, pytest.raises(WrongIsolation, match="read-only"):
        session.execute(sa.update(Order).values(total=99))
    assert statements == []
    session.commit()
    assert elsewhere(sa.select(Order.total).where(Order.id == 1)) == [(30,)]


def test_the_next_transaction_may_write(session: LockingSession) -> None:
    session.get_one_entity(Order, 1, SnapshotRead)
    session.release_locks()
    session.get_one_entity(Order, 1, LockOptions.ForUpdate).total = 31
    session.save_changes()


@pytest.mark.databases("sqlite")  # where a plain read is outside of any transaction
def test_a_plain_read_before_it_makes_no_difference_on_sqlite(session: LockingSession) -> None:
    known = session.get_one(Customer, 1)
    session.get_one_entity(Order, 1, SnapshotRead).total = 99
    with pytest.raises(WrongIsolation, match="read-only"):
        session.flush()
    session.rollback()
    assert known.name == "Ann"
    session.get_one_entity(Order, 1, SnapshotRead)
    assert session.get_one_entity(Order, 2, SnapshotRead).total == 5
    session.rollback()
    assert known.name == "Ann"
    session.get_one_entity(Order, 1, SnapshotRead)
    with pytest.raises(WrongIsolation, match="read-only"):
        session.get_entity(Order, 2, LockOptions.ForUpdate)
