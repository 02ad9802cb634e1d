"""A key belongs to a transaction: which transactions can lock one, and what else they can do."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError, PendingRollbackError

from sa_doclock import (
    LockingSession,
    LockMisuse,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    LockUpgradeRefused,
    WrongIsolation,
)
from sa_doclock.dialects import product_of, strategy_for
from sa_doclock.dialects.innodb_named_locks import InnoDBNamedLocks
from sa_doclock.pool import actions_of
from tests.integration.locking.connections import patience_of, set_patience
from tests.integration.locking.steps import finds_held, recorded
from tests.integration.named_locks.conftest import KEY, finds_taken
from tests.support.models import Base, Customer, Order
from tests.support.poolers import SETS_CONNECTION

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
    session.lock_key("another")  # the transaction continues
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
    assert session.in_transaction()  # the block did not open it
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
        assert kept is (name != "postgresql") or name == "mssql"  # it does not document this
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


# --------------------------------------------------------------------------------------------------
# A key that another transaction holds: the error, and the state of the transaction afterwards.


@pytest.mark.parametrize("lock_timeout", [0.2, 0.0001, timedelta(milliseconds=100)], ids=str)
def test_it_gets_an_error_after_that_time(
    session: Session, other: Session, lock_timeout: Any
) -> None:
    other.lock_key(KEY)
    with pytest.raises(LockNotAvailable) as caught:
        session.lock_key(KEY, lock_timeout=lock_timeout)
    error = caught.value
    product = product_of(session.get_bind().dialect)
    start = f"named lock 'user:42' FOR UPDATE on {product}: not granted within "
    assert str(error).startswith(start)
    assert error.retryable
    assert isinstance(error, OperationalError)
    assert (error.entity, error.ident, error.lock) == (None, KEY, LockOptions.ForUpdate)
    assert not session.in_transaction()
    assert finds_taken()(session)


def test_zero_does_not_wait_at_all(session: Session, other: Session) -> None:
    other.lock_key(KEY)
    with pytest.raises(LockNotAvailable, match=r"FOR UPDATE NOWAIT on .*held by another"):
        session.lock_key(KEY, lock_timeout=0)
    with pytest.raises(LockNotAvailable, match="'user:42' SHARED READ NOWAIT on "):
        session.lock_key(KEY, lock_timeout=timedelta(0), shared=True)


def test_a_very_long_limit_is_none_that_a_server_refuses(session: Session) -> None:
    for lock_timeout in (1e12, timedelta(days=30_000)):
        session.lock_key(KEY, lock_timeout=lock_timeout)
        session.rollback()


@SETS_CONNECTION
def test_without_a_limit_the_servers_own_ends_the_wait(
    make_engine: Callable[..., sa.Engine], other: Session
) -> None:
    engine = make_engine()
    set_patience(engine, 1)
    other.lock_key(KEY)
    with (
        LockingSession(engine) as session,
        pytest.raises(LockNotAvailable, match="not granted within the server's own limit"),
    ):
        session.lock_key(KEY)


@SETS_CONNECTION
@pytest.mark.slow
def test_a_limit_longer_than_the_servers_is_kept(
    make_engine: Callable[..., sa.Engine], other: Session
) -> None:
    engine = make_engine()
    set_patience(engine, 1)
    other.lock_key(KEY)
    with (
        LockingSession(engine) as session,
        pytest.raises(LockNotAvailable, match=r"not granted within 1\.3 s"),
    ):
        session.lock_key(KEY, lock_timeout=1.3)


@pytest.mark.read_committed
def test_a_transaction_that_was_open_does_nothing_more(
    engine: sa.Engine, session: Session, other: Session
) -> None:
    other.lock_key(KEY)
    session.begin()
    customer = session.get_one(Customer, 1)
    with pytest.raises(LockNotAvailable):
        session.lock_key(KEY, lock_timeout=0)
    customer.name = "escaped"
    acts: tuple[Callable[[], object], ...] = (
        session.flush,
        session.commit,
        lambda: session.lock_key(KEY),
        lambda: session.lock_key("another"),
        lambda: session.scalar(sa.select(1)),
    )
    with recorded(engine) as statements:
        for act in acts:
            with pytest.raises(PendingRollbackError, match="named lock 'user:42'"):
                act()
    assert statements == []
    session.rollback()
    other.rollback()
    session.lock_key(KEY)
    assert session.get_one(Customer, 1).name == "Ann"


@pytest.mark.read_committed
def test_the_rollback_of_a_savepoint_saves_the_rest(session: Session, other: Session) -> None:
    with session.begin():
        session.lock_key("mine")
        if session.get_bind().dialect.name == "sqlite":
            return  # no other session can have a key
        other.lock_key(KEY)
        with pytest.raises(LockNotAvailable), session.begin_nested():
            session.lock_key(KEY, lock_timeout=0)
        other.rollback()
        session.lock_key(KEY, lock_timeout=0)


@SETS_CONNECTION
def test_nothing_of_the_wait_stays_on_the_connection(
    make_engine: Callable[..., sa.Engine], other: Session
) -> None:
    engine = make_engine(pool_size=1, max_overflow=0)
    set_patience(engine, 47)
    with engine.connect() as connection:
        before = patience_of(connection)
    for lock_timeout in (0, 0.2, 5):
        with LockingSession(engine) as session:
            session.lock_key(KEY, lock_timeout=lock_timeout)
            assert patience_of(session.connection()) == before
        if lock_timeout < 1:
            other.lock_key(KEY)
            with LockingSession(engine) as session, pytest.raises(LockNotAvailable):
                session.lock_key(KEY, lock_timeout=lock_timeout)
            other.rollback()
        with engine.connect() as connection:
            assert patience_of(connection) == before


@pytest.mark.databases("mysql", "mariadb")
def test_what_was_not_granted_is_not_released_later(session: Session, other: Session) -> None:
    other.lock_key(KEY)
    session.lock_key("another")
    registered = dict(actions_of(session.connection()))
    with session.begin_nested() as savepoint:
        with pytest.raises(LockNotAvailable):
            session.lock_key(KEY, lock_timeout=0)
        savepoint.rollback()
    assert actions_of(session.connection()) == registered


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.parametrize("reports_status", [True, False], ids=["status", "no status"])
def test_a_lock_follows_a_named_lock_and_a_connection_that_was_handed_out(
    session: Session, monkeypatch: pytest.MonkeyPatch, reports_status: bool
) -> None:
    """A named lock begins no InnoDB transaction, so there is no level to query."""
    if not reports_status:  # as with mysqlclient and mariadb-connector
        monkeypatch.setattr("sa_doclock.dialects.innodb._status", lambda _: None)
    session.lock_key("another")
    session.connection()
    session.lock_key(KEY)
    session.connection()
    session.get_entity(Customer, 1, LockOptions.ForUpdate)
    session.connection()
    session.lock_key("a third")


#: GET_LOCK is granted at once, and the limit ends the statement afterwards.
_FROM = (
    "MAX(first.granted), COUNT(*) FROM (SELECT GET_LOCK(:name, 0) AS granted LIMIT 1) AS first, "
    + ", ".join(f"information_schema.columns AS c{n}" for n in range(4))
)
_LATE = {
    "mysql": f"SELECT /*+ MAX_EXECUTION_TIME(50) */ {_FROM}",
    "mariadb": f"SET STATEMENT max_statement_time = 0.05 FOR SELECT {_FROM}",
}


@pytest.mark.databases("mysql", "mariadb")
def test_a_limit_that_ends_the_statement_after_the_grant(engine: sa.Engine, other: Session) -> None:
    """A busy server can be this slow, if the limit is a few milliseconds."""
    strategy = strategy_for(engine)
    late = sa.text(_LATE[product_of(engine.dialect)])
    names = InnoDBNamedLocks(lambda _seconds: late, strategy.errors)
    with engine.connect() as connection:
        found = names.take(connection, KEY, LockOptions.ForUpdate, 0.05)
        assert found is LockNotAvailable
        with pytest.raises(LockNotAvailable), names.while_inserting(connection, KEY, 0.05):
            pass
        other.lock_key(KEY, lock_timeout=0)
