"""Conflicts that the server finds only at a write or at the commit are errors of the same kinds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import InvalidRequestError, PendingRollbackError

from sa_doclock import LockingSession, LockNotAvailable, LockOptions, SnapshotConflict
from tests.integration.locking.connections import set_patience
from tests.integration.locking.steps import finds_held
from tests.support.databases import Database
from tests.support.models import Customer, Order
from tests.support.poolers import SETS_CONNECTION

pytestmark = pytest.mark.quick

Session = LockingSession
Run = Callable[..., list[Any]]
MakeSession = Callable[..., LockingSession]

tells_517 = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="sqlite3 tells no error numbers before Python 3.11"
)

NAMES = sa.select(Customer.id, Customer.name).order_by(Customer.id)
RENAMED = sa.update(Customer).where(Customer.id == 1).values(name="by another")


def rename(session: Session, name: str) -> None:
    session.get_one(Customer, 1).name = name


def is_lenient(elsewhere: Run) -> bool:
    """Tell whether MariaDB lets a transaction write what it has not seen."""
    found = elsewhere(sa.text("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'"))
    return found != [("innodb_snapshot_isolation", "ON")]  # before 10.6.18 there is none


@pytest.mark.databases("postgresql", "mariadb", "mssql")
def test_a_flush_over_what_another_has_written(
    database: Database, make_session: MakeSession, elsewhere: Run
) -> None:
    if database.name == "mariadb" and is_lenient(elsewhere):
        pytest.skip("innodb_snapshot_isolation is off, as before MariaDB 11.6.2")
    level = "SNAPSHOT" if database.name == "mssql" else "REPEATABLE READ"
    session = make_session(isolation_level=level)
    rename(session, "mine")
    elsewhere(RENAMED)
    with pytest.raises(SnapshotConflict, match=f"the transaction on {database.name}: ") as caught:
        session.flush()
    assert caught.value.retryable
    assert caught.value.lock is None
    with pytest.raises(PendingRollbackError):
        session.execute(sa.update(Customer).values(name="escaped"))
    session.rollback()
    assert elsewhere(NAMES) == [(1, "by another"), (2, "Ben")]


@pytest.mark.databases("postgresql", "mariadb")
def test_a_plain_statement_over_what_another_has_written(
    database: Database, make_session: MakeSession, elsewhere: Run
) -> None:
    if database.name == "mariadb" and is_lenient(elsewhere):
        pytest.skip("innodb_snapshot_isolation is off, as before MariaDB 11.6.2")
    session = make_session(isolation_level="REPEATABLE READ")
    session.execute(sa.update(Customer).where(Customer.id == 2).values(name="before"))
    session.scalars(sa.select(Customer.name)).all()
    elsewhere(RENAMED)
    mine = sa.update(Customer).where(Customer.id == 1).values(name="mine")
    with pytest.raises(SnapshotConflict):
        session.execute(mine)
    for act in (lambda: session.execute(mine), session.commit):
        with pytest.raises(PendingRollbackError):
            act()
    session.rollback()
    assert elsewhere(NAMES) == [(1, "by another"), (2, "Ben")]


@pytest.mark.databases("postgresql")
def test_a_commit_that_is_not_serializable(make_session: MakeSession, elsewhere: Run) -> None:
    one = make_session(isolation_level="SERIALIZABLE")
    two = make_session(isolation_level="SERIALIZABLE")
    for session in (one, two):
        session.scalars(sa.select(Customer.name)).all()
    for session, ident in ((one, 1), (two, 2)):
        session.get_one(Customer, ident).name = "mine"
        session.flush()
    one.save_changes()
    with pytest.raises(SnapshotConflict, match="the transaction on postgresql"):
        two.save_changes()
    with pytest.raises(InvalidRequestError):  # a PendingRollbackError is one
        two.scalar(NAMES)
    two.rollback()
    assert elsewhere(NAMES) == [(1, "mine"), (2, "Ben")]


@tells_517
@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.databases("sqlite")
def test_a_flush_in_a_snapshot_of_sqlite(session: Session, elsewhere: Run) -> None:
    session.get_one_entity(Order, 1, LockOptions.SharedRead)
    rename(session, "mine")
    elsewhere(RENAMED)
    with pytest.raises(SnapshotConflict, match="on sqlite: changed by another") as caught:
        session.flush()
    assert caught.value.orig is not None
    session.rollback()
    assert elsewhere(NAMES) == [(1, "by another"), (2, "Ben")]


@tells_517
@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.databases("sqlite")
def test_a_lock_in_a_snapshot_of_sqlite(make_session: MakeSession, elsewhere: Run) -> None:
    session = make_session()
    with session.begin():
        session.connection().exec_driver_sql("BEGIN")
        known = session.get_one(Customer, 1)
        elsewhere(RENAMED)
        with pytest.raises(SnapshotConflict, match="Order 1 FOR UPDATE on sqlite"):
            session.get_entity(Order, 1, LockOptions.ForUpdate)
        with pytest.raises(PendingRollbackError):
            session.refresh(known)
        session.rollback()


@pytest.mark.databases("sqlite-journal")
def test_a_commit_that_readers_do_not_let_through(
    engine: sa.Engine, session: Session, make_session: MakeSession, elsewhere: Run
) -> None:
    set_patience(engine, 0)
    reader = make_session()
    reader.get_one_entity(Order, 1, LockOptions.SharedRead)
    session.get_one_entity(Order, 1, LockOptions.ForUpdate).total = 31
    with pytest.raises(LockNotAvailable, match="Order 1 on sqlite: not granted") as caught:
        session.save_changes()
    assert (caught.value.entity, caught.value.ident, caught.value.lock) == (Order, 1, None)
    with pytest.raises(InvalidRequestError):
        session.scalar(NAMES)
    session.rollback()
    assert not session.held_locks
    reader.release_locks()
    assert not finds_held()(reader)  # SQLITE_BUSY leaves the transaction open
    assert elsewhere(sa.select(Order.total).where(Order.id == 1)) == [(30,)]
    session.get_one_entity(Order, 1, LockOptions.ForUpdate).total = 31
    session.save_changes()


@SETS_CONNECTION
def test_a_flush_that_waits_too_long(
    engine: sa.Engine, session: Session, make_session: MakeSession, elsewhere: Run
) -> None:
    set_patience(engine, 1)
    holder = make_session()
    holder.get_one_entity(Customer, 1, LockOptions.ForUpdate)
    rename(session, "mine")
    with pytest.raises(
        LockNotAvailable, match=r"the transaction on .*: not granted within the serv"
    ):
        session.flush()
    session.rollback()
    holder.rollback()
    assert elsewhere(NAMES) == [(1, "Ann"), (2, "Ben")]
    rename(session, "mine")
    session.save_changes()
