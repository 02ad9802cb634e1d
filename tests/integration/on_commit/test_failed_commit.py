"""on_commit: a commit that fails is none, and calls nothing."""

from __future__ import annotations

from contextlib import suppress

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, PendingRollbackError

from sa_doclock import LockingSession, LockNotAvailable, LockOptions, UnsavedChanges
from tests.integration.on_commit.promises import Promises
from tests.support.models import Customer, Order

pytestmark = pytest.mark.read_committed

ForUpdate = LockOptions.ForUpdate
Session = LockingSession


@pytest.fixture
def promises() -> Promises:
    return Promises()


def test_a_commit_whose_flush_fails_is_none(session: Session, promises: Promises) -> None:
    session.begin()
    session.on_commit(promises.note())
    session.add(Customer(id=1, name="there already"))
    with pytest.raises(IntegrityError):
        session.commit()
    session.rollback()
    session.commit()
    assert promises.kept == []


def test_a_block_whose_commit_fails_is_none(session: Session, promises: Promises) -> None:
    def work() -> None:
        with session.locked(Order, 1):
            session.on_commit(promises.note())
            session.add(Customer(id=1, name="there already"))

    with pytest.raises(IntegrityError):
        work()
    session.commit()
    assert promises.kept == []


def test_what_is_promised_after_a_failed_flush_is_dropped_too(
    session: Session, promises: Promises
) -> None:
    session.begin()
    session.add(Customer(id=1, name="there already"))
    with pytest.raises(IntegrityError):
        session.flush()
    session.on_commit(promises.note())
    with pytest.raises(PendingRollbackError):
        session.commit()
    session.rollback()
    session.commit()
    assert promises.kept == []


@pytest.mark.databases("postgresql", "sqlite")
def test_a_commit_that_the_database_refuses_is_none(
    engine: sa.Engine, session: Session, promises: Promises
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS lk_deferred")
        connection.exec_driver_sql(
            "CREATE TABLE lk_deferred (id INTEGER REFERENCES lk_customer (id) "
            "DEFERRABLE INITIALLY DEFERRED)"
        )
    if engine.dialect.name == "sqlite":
        session.connection().exec_driver_sql("PRAGMA foreign_keys = ON")
    session.execute(sa.text("INSERT INTO lk_deferred VALUES (99)"))
    session.on_commit(promises.note())
    with pytest.raises(DBAPIError):
        session.commit()
    session.rollback()
    session.commit()
    assert promises.kept == []
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE lk_deferred")


@pytest.mark.not_databases("sqlite")
def test_a_transaction_that_has_failed_to_lock_is_none(
    session: Session, other: Session, promises: Promises
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    session.begin()
    session.on_commit(promises.note())
    with pytest.raises(LockNotAvailable):
        session.get_entity(Order, 1, ForUpdate | LockOptions.NoWait)
    with pytest.raises(PendingRollbackError):
        session.commit()
    session.rollback()
    session.commit()
    assert promises.kept == []


def test_a_refusal_that_sends_nothing_drops_nothing(session: Session, promises: Promises) -> None:
    session.begin()
    session.on_commit(promises.note())
    session.get_one(Order, 1).total = 31
    with pytest.raises(UnsavedChanges):
        session.get_entity(Order, 1, ForUpdate)
    session.commit()
    assert promises.kept == ["called"]


BROKEN = sa.text("SELECT * FROM there_is_no_such_table")


@pytest.mark.databases("postgresql")
def test_a_commit_that_postgresql_makes_a_rollback_is_none(
    session: Session, promises: Promises
) -> None:
    session.begin()
    session.add(Customer(id=9, name="new"))
    session.flush()
    session.on_commit(promises.note())
    with pytest.raises(DBAPIError):
        session.execute(BROKEN)
    with pytest.raises(PendingRollbackError):
        session.commit()  # would be answered by ROLLBACK, which psycopg does not tell
    session.rollback()
    assert session.get(Customer, 9) is None
    session.commit()
    assert promises.kept == []


@pytest.mark.not_databases("postgresql")
def test_an_error_that_aborts_nothing_drops_nothing(session: Session, promises: Promises) -> None:
    session.begin()
    session.add(Customer(id=9, name="new"))
    session.flush()
    session.on_commit(promises.note())
    with pytest.raises(DBAPIError):
        session.execute(BROKEN)
    session.commit()
    assert session.get(Customer, 9) is not None
    assert promises.kept == ["called"]


def test_nor_does_one_in_a_savepoint(session: Session, promises: Promises) -> None:
    with session.begin():
        session.get_one_entity(Order, 1, ForUpdate).total = 31
        session.on_commit(promises.note("kept"))
        with suppress(DBAPIError), session.begin_nested():
            session.on_commit(promises.note("dropped"))
            session.execute(BROKEN)
        assert list(session.held_locks) == [(Order, (1,))]
        session.on_commit(promises.note("too"))
    assert promises.kept == ["kept", "too"]
    assert session.get_one(Order, 1).total == 31


def test_nor_one_of_the_transaction_before(session: Session, promises: Promises) -> None:
    with pytest.raises(DBAPIError):
        session.execute(BROKEN)
    session.rollback()
    session.get_one_entity(Order, 1, ForUpdate)
    session.on_commit(promises.note())
    session.commit()
    assert promises.kept == ["called"]
