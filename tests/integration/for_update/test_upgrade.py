"""with_for_update(read=True), then with_for_update(): the program's own way from one to the other.

A plain Session may do so on every database.  Where the read is a snapshot, of SQLite, the lock is
granted only if that is still the newest one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import (
    LockingSession,
    LockNotAvailable,
    LockOptions,
    LockUpgradeRefused,
    SnapshotConflict,
    WrongIsolation,
    run_transaction,
)
from tests.integration.locking.steps import add_ten, finds_held, recorded, roll_back, save
from tests.support.actors import Actor
from tests.support.models import Order

pytestmark = pytest.mark.read_committed

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
SnapshotRead = LockOptions.SnapshotRead
Session = LockingSession
ORDERS: Any = Order.__table__
FIRST = sa.select(Order).where(Order.id == 1)
SECOND = sa.select(Order).where(Order.id == 2)
TOTAL = sa.select(Order.total).where(Order.id == 1)


def writers_commit_beside_readers(test: Any) -> Any:
    """Mark a test of SQLite in WAL mode: with a rollback journal nobody commits beside a reader."""
    reported = pytest.mark.skipif(
        sys.version_info < (3, 11), reason="sqlite3 tells no error numbers before Python 3.11"
    )
    in_wal_mode = pytest.mark.not_databases("sqlite-journal")(test)
    return reported(pytest.mark.databases("sqlite")(in_wal_mode))


def read_shared(session: Session) -> Order:
    return session.scalars(FIRST.with_for_update(read=True)).one()


def upgrade(session: Session) -> Order:
    return session.scalars(FIRST.with_for_update()).one()


def add_one(session: Session) -> None:
    """Read with the weaker lock, and write under the stronger one."""
    read_shared(session)
    upgrade(session).total += 1


UPGRADES: dict[str, Callable[[Session], object]] = {
    "select": upgrade,
    "get": lambda s: s.get(Order, 1, with_for_update=True),
    "refresh": lambda s: s.refresh(s.get_one(Order, 1), with_for_update=True),
    "of a table": lambda s: s.execute(sa.select(ORDERS).with_for_update()).all(),
    "within": lambda s: s.execute(sa.select(FIRST.with_for_update().subquery())).all(),
}


@pytest.mark.parametrize("upgrade", UPGRADES.values(), ids=UPGRADES)
def test_it_is_granted(
    session: Session, other: Session, upgrade: Callable[[Session], object]
) -> None:
    order = read_shared(session)
    upgrade(session)
    assert finds_held()(other)
    order.total += 1
    session.commit()
    assert other.scalar(TOTAL) == 31


def test_it_is_recorded(session: Session) -> None:
    read_shared(session)
    upgrade(session)
    assert dict(session.held_locks) == {(Order, (1,)): ForUpdate}


def test_a_lock_of_ours_is_refused_the_upgrade(session: Session) -> None:
    read_shared(session)
    with pytest.raises(LockUpgradeRefused):
        session.get_entity(Order, 1, ForUpdate)


def test_a_lock_of_ours_may_follow(session: Session, other: Session) -> None:
    read_shared(session)
    upgrade(session)
    session.get_one_entity(Order, 2, ForUpdate).total = 6
    assert finds_held(Order, 2)(other)
    session.save_changes()


def test_it_may_follow_a_read_of_ours(session: Session, other: Session) -> None:
    session.get_one_entity(Order, 1, SharedRead)
    session.scalars(SECOND.with_for_update()).one().total = 6
    assert finds_held(Order, 2)(other)
    assert dict(session.held_locks) == {(Order, (1,)): SharedRead, (Order, (2,)): ForUpdate}
    session.commit()


def test_a_savepoint_that_is_rolled_back_takes_the_record_along(
    session: Session, other: Session
) -> None:
    read_shared(session)
    savepoint = session.begin_nested()
    upgrade(session)
    savepoint.rollback()
    assert dict(session.held_locks) == {(Order, (1,)): SharedRead}
    upgrade(session)
    assert finds_held()(other)


@pytest.mark.databases("sqlite")
def test_sqlite_keeps_the_lock_of_a_savepoint_that_is_rolled_back(
    session: Session, other: Session
) -> None:
    read_shared(session)
    savepoint = session.begin_nested()
    upgrade(session)
    savepoint.rollback()
    assert finds_held()(other)
    session.rollback()
    assert not finds_held()(other)


@pytest.mark.databases("sqlite")
def test_the_write_lock_is_taken_once(engine: sa.Engine, session: Session) -> None:
    read_shared(session)
    upgrade(session)
    with recorded(engine) as statements:
        upgrade(session)
    assert len(statements) == 1


@writers_commit_beside_readers
def test_a_snapshot_that_is_old_is_a_conflict_and_no_update_is_lost(
    session: Session, other: Session, elsewhere: Callable[..., list[Any]]
) -> None:
    read_shared(session)
    other.get_one_entity(Order, 1, ForUpdate).total = 40
    other.commit()
    with pytest.raises(SnapshotConflict, match=r"^Order rows FOR UPDATE"):
        upgrade(session)
    assert dict(session.held_locks) == {(Order, (1,)): SharedRead}
    with pytest.raises(WrongIsolation):  # it reads a snapshot, as before
        session.get_entity(Order, 2, ForUpdate)
    session.rollback()
    add_one(session)
    session.commit()
    assert elsewhere(TOTAL) == [(41,)]


@pytest.mark.databases("sqlite")
def test_another_writer_is_not_waited_for(alice: Actor[Session], bob: Actor[Session]) -> None:
    bob.does(read_shared)
    alice.does(add_ten)
    with pytest.raises(LockNotAvailable):  # the wait would end in a conflict
        bob.does(upgrade)
    bob.does(roll_back)
    alice.does(save)
    bob.does(add_one)
    bob.does(save)
    assert bob.does(lambda session: session.scalar(TOTAL)) == 41


@writers_commit_beside_readers
def test_run_transaction_repeats_a_conflict(session_factory: Any, other: Session) -> None:
    attempts: list[int] = []

    def work(session: Session) -> None:
        read_shared(session)
        attempts.append(1)
        if len(attempts) == 1:
            other.get_one_entity(Order, 1, ForUpdate).total = 40
            other.commit()
        upgrade(session).total += 1

    run_transaction(session_factory, work, backoff=0)
    assert len(attempts) == 2
    assert other.scalar(TOTAL) == 41


@pytest.mark.databases("sqlite")
def test_a_snapshot_read_is_not_upgraded(session: Session) -> None:
    session.get_one_entity(Order, 1, SnapshotRead)
    with pytest.raises(WrongIsolation, match="read-only"):
        upgrade(session)
