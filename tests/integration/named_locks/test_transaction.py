"""A key is the transaction's: which transactions can have one, and what else is done in them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import PendingRollbackError

from sa_doclock import (
    LockingSession,
    LockMisuse,
    LockNotSupported,
    LockOptions,
    LockUpgradeRefused,
    WrongIsolation,
)
from tests.integration.locking.steps import finds_held, recorded
from tests.integration.named_locks.keys import KEY, finds_taken
from tests.support.models import Base, Customer, Order

Session = LockingSession


def test_the_same_key_again_sends_nothing(engine: sa.Engine, session: Session) -> None:
    session.lock_key(KEY)
    with recorded(engine) as statements:
        session.lock_key(KEY, lock_timeout=0)
        session.lock_key(KEY, shared=True)
        session.lock_key(KEY)
    assert statements == []


def test_shared_then_alone_is_refused(session: Session) -> None:
    session.lock_key(KEY, shared=True)
    session.lock_key(KEY, shared=True)
    with pytest.raises(LockUpgradeRefused, match=r"named lock 'user:42' FOR UPDATE on .*SHARED"):
        session.lock_key(KEY)
    session.lock_key("another")  # the transaction goes on
    session.commit()
    session.lock_key(KEY)


def test_a_key_is_no_document(session: Session) -> None:
    session.lock_key(KEY)
    assert not session.held_locks


def test_pending_changes_are_not_flushed(engine: sa.Engine, session: Session) -> None:
    session.add(Customer(id=9, name="new"))
    with recorded(engine) as statements:
        session.lock_key(KEY)
    assert not any(sql.startswith("INSERT") for sql in statements)
    session.save_changes()


def test_documents_are_locked_under_it(session: Session, other: Session) -> None:
    session.lock_key(KEY)
    with session.locked(Order, 1) as order:
        order.total = 31
    assert session.in_transaction()  # the block has not opened it
    assert finds_taken()(other)
    assert finds_held()(other)
    session.save_changes()
    assert not finds_taken()(other)


@pytest.mark.not_databases("mysql", "mariadb")
def test_it_can_come_after_a_read(session: Session, other: Session) -> None:
    session.get_one(Order, 1)
    session.lock_key(KEY)
    assert finds_taken()(other)


@pytest.mark.databases("mysql", "mariadb")
def test_after_a_read_what_comes_under_the_key_could_be_older(session: Session) -> None:
    session.get_one(Order, 1)
    with pytest.raises(WrongIsolation, match="named lock 'user:42' FOR UPDATE on"):
        session.lock_key(KEY)
    session.rollback()
    session.lock_key(KEY)


def test_it_is_refused_in_a_snapshot(session: Session, held_there: Callable[[], bool]) -> None:
    session.get_one_entity(Order, 1, LockOptions.SnapshotRead)
    with pytest.raises(WrongIsolation, match="opened read-only by a SnapshotRead"):
        session.lock_key(KEY)
    assert not held_there()


def test_it_is_refused_in_autocommit(
    make_engine: Callable[..., sa.Engine], held_there: Callable[[], bool]
) -> None:
    with (
        LockingSession(make_engine(isolation_level="AUTOCOMMIT")) as session,
        pytest.raises(LockNotSupported, match="AUTOCOMMIT"),
    ):
        session.lock_key(KEY)
    assert not held_there()


def test_it_is_refused_after_a_failed_flush(session: Session) -> None:
    session.lock_key(KEY)
    session.add(Order(id=1, total=1))
    with pytest.raises(sa.exc.IntegrityError):
        session.flush()
    with pytest.raises(PendingRollbackError):
        session.lock_key(KEY)


@pytest.mark.databases("postgresql")
def test_after_an_error_that_aborts_the_transaction_it_is_not_held(session: Session) -> None:
    session.lock_key(KEY)
    with pytest.raises(sa.exc.DBAPIError):
        session.execute(sa.text("SELECT 1 / 0"))
    with pytest.raises(sa.exc.DBAPIError, match="aborted"):
        session.lock_key(KEY)


def test_a_savepoint_that_is_rolled_back_is_taken_again(
    engine: sa.Engine, session: Session, other: Session
) -> None:
    with session.begin():
        session.lock_key("before")
        savepoint = session.begin_nested()
        session.lock_key(KEY)
        savepoint.rollback()
        kept = finds_taken()(other)
        name = session.get_bind().dialect.name
        assert kept is (name != "postgresql") or name == "mssql"  # which does not document it
        with recorded(engine) as statements:
            session.lock_key("before")
        assert statements == []
        session.lock_key(KEY)
        assert finds_taken()(other)
    assert not finds_taken()(other)


def test_a_session_with_several_databases_says_which(engine: sa.Engine, other: Session) -> None:
    with LockingSession(binds={Base: engine}) as session:
        with pytest.raises(LockMisuse, match="cannot tell which database of the session"):
            session.lock_key(KEY)
        session.lock_key(KEY, bind_arguments={"mapper": Order})
        assert finds_taken()(other)
        session.rollback()
        session.lock_key(KEY, bind_arguments={"bind": engine})
        assert finds_taken()(other)
