"""Read-only transactions: row locks are refused, snapshots are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import PendingRollbackError

from sa_doclock import LockingSession, LockNotSupported, LockOptions
from tests.integration.locking.steps import finds_held
from tests.support.models import Customer, Order
from tests.support.poolers import ENDS_CONNECTION

pytestmark = [
    pytest.mark.quick,
    pytest.mark.databases("postgresql", "mysql", "mariadb"),
    ENDS_CONNECTION,
]

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
Session = LockingSession

READ_ONLY: Mapping[str, str] = {
    "postgresql": "SET default_transaction_read_only = on",
    "mysql": "SET SESSION TRANSACTION READ ONLY",  # of MariaDB as well
}


@pytest.fixture
def engine(make_engine: Callable[..., sa.Engine], read_committed: dict[str, Any]) -> sa.Engine:
    """Make an engine whose transactions are read-only by default."""
    engine = make_engine(**read_committed)

    @sa.event.listens_for(engine, "connect")
    def make_read_only(connection: Any, _: object) -> None:
        cursor = connection.cursor()
        cursor.execute(READ_ONLY[engine.dialect.name])
        cursor.close()
        connection.commit()

    return engine


def test_a_write_lock_is_refused(session: Session) -> None:
    with pytest.raises(LockNotSupported, match=r"Order 1 .*: a read-only transaction"):
        session.get_entity(Order, 1, ForUpdate)
    assert not session.in_transaction()
    with pytest.raises(LockNotSupported, match=r"Order rows .*: a read-only transaction"):
        session.scalars(session.entity_set(Order, ForUpdate)).all()


@pytest.mark.databases("postgresql")
def test_a_read_lock_is_refused_by_postgresql(session: Session) -> None:
    with pytest.raises(LockNotSupported, match=r"Order 1 .*: a read-only transaction"):
        session.get_entity(Order, 1, SharedRead)
    assert not session.in_transaction()


@pytest.mark.databases("mysql", "mariadb")
def test_a_read_lock_is_granted_by_innodb(
    session: Session, make_session: Callable[..., LockingSession]
) -> None:
    session.get_one_entity(Order, 1, SharedRead)
    assert finds_held()(make_session())


def test_a_callers_transaction_does_nothing_more(session: Session) -> None:
    session.begin()
    assert session.get_one(Customer, 1).name == "Ann"
    with pytest.raises(LockNotSupported):
        session.get_entity(Order, 1, ForUpdate)
    with pytest.raises(PendingRollbackError):
        session.scalar(sa.select(Order.id))
    session.rollback()
    assert session.get_one(Order, 1).total == 30


def test_a_snapshot_is_read(session: Session) -> None:
    assert session.get_one_entity(Order, 1, LockOptions.SnapshotRead).total == 30
    session.release_locks()
    assert session.get_one_entity(Order, 1).total == 30
