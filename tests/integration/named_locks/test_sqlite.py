"""On SQLite a key is the write lock on the file, also in a transaction that has begun by a read."""

from __future__ import annotations

import sys

import pytest

from sa_doclock import LockingSession, LockOptions, SnapshotConflict, WrongIsolation
from tests.integration.named_locks.keys import KEY, finds_taken
from tests.support.models import Order

pytestmark = pytest.mark.databases("sqlite")

Session = LockingSession


def begin_by_a_read(session: Session) -> None:
    session.connection().exec_driver_sql("BEGIN")
    session.get_one(Order, 1)


def test_every_key_is_the_same_lock(session: Session, other: Session) -> None:
    session.lock_key(KEY)
    assert finds_taken("another")(other)


def test_after_a_read_the_write_lock_is_taken_and_nothing_is_changed(
    session: Session, other: Session
) -> None:
    session.connection().exec_driver_sql("PRAGMA user_version = 7")
    session.commit()
    begin_by_a_read(session)
    session.lock_key(KEY)
    assert finds_taken()(other)
    session.commit()
    assert session.connection().exec_driver_sql("PRAGMA user_version").scalar() == 7


@pytest.mark.skipif(sys.version_info < (3, 11), reason="sqlite3 tells no error numbers before")
@pytest.mark.not_databases("sqlite-journal")  # where a reader keeps writers from committing
def test_after_a_read_that_is_old_it_is_a_conflict(session: Session, other: Session) -> None:
    begin_by_a_read(session)
    other.get_one_entity(Order, 1, LockOptions.ForUpdate).total = 99
    other.commit()
    with pytest.raises(SnapshotConflict, match="named lock 'user:42' FOR UPDATE on sqlite"):
        session.lock_key(KEY)
    session.rollback()
    session.lock_key(KEY)


def test_after_a_shared_read_it_is_refused(session: Session) -> None:
    session.get_one_entity(Order, 1, LockOptions.SharedRead)
    with pytest.raises(WrongIsolation, match="the transaction reads a snapshot"):
        session.lock_key(KEY)
