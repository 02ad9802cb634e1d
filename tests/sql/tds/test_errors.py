"""The numbers of the server, out of what each driver makes of them, become our classes."""

from __future__ import annotations

import pytest

from sa_doclock import (
    DeadlockDetected,
    DocLockError,
    LockFailed,
    LockingSession,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    SnapshotConflict,
    WrongIsolation,
)
from tests.sql.models import Customer, Order
from tests.sql.tds.server import TDSServer, said

FAILURES: dict[int, type[LockFailed]] = {
    1222: LockNotAvailable,
    1205: DeadlockDetected,
    3960: SnapshotConflict,
}
REFUSALS: dict[int, type[DocLockError]] = {3951: WrongIsolation, 3953: LockNotSupported}
STATES = {0: "run op.enable_snapshot_isolation", 2: "is being switched", 3: "is being switched"}
each_failure = pytest.mark.parametrize(("number", "kind"), FAILURES.items(), ids=str)


def assert_locks_again(session: LockingSession, wire: TDSServer) -> None:
    """Lock once more, within a transaction, and commit."""
    session.rollback()
    wire.sent.clear()
    assert session.get_one_entity(Order, 1, LockOptions.ForUpdate).id == 1
    (sent,) = said(wire, "UPDLOCK")
    assert sent.in_transaction
    session.commit()
    assert [sent.in_transaction for sent in said(wire, "commit")] == [True]


@each_failure
def test_a_lock_that_failed(
    session: LockingSession, wire: TDSServer, number: int, kind: type[LockFailed]
) -> None:
    wire.database.failures.append(("FROM shop_order", number))
    with pytest.raises(LockFailed, match=r"^Order 1 FOR UPDATE on mssql: ") as caught:
        session.get_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=0.3)
    assert type(caught.value) is kind
    assert caught.value.retryable
    assert f"({number})" in str(caught.value.orig)
    assert_locks_again(session, wire)


@each_failure
def test_in_a_transaction_that_has_read_before(
    session: LockingSession, wire: TDSServer, number: int, kind: type[LockFailed]
) -> None:
    session.get(Customer, 1)
    wire.database.failures.append(("FROM shop_order", number))
    with pytest.raises(kind):
        session.get_entity(Order, 1, LockOptions.ForUpdate)
    assert_locks_again(session, wire)


@each_failure
def test_a_flush_that_failed(
    session: LockingSession, wire: TDSServer, number: int, kind: type[LockFailed]
) -> None:
    wire.database.failures.append(("UPDATE shop_order", number))
    with pytest.raises(kind), session.locked(Order, 1) as order:
        order.total = 7
    assert_locks_again(session, wire)


@pytest.mark.parametrize(("number", "kind"), REFUSALS.items(), ids=str)
def test_a_snapshot_that_was_refused(
    session: LockingSession, wire: TDSServer, number: int, kind: type[DocLockError]
) -> None:
    wire.database.failures.append(("FROM shop_order", number))
    with pytest.raises(DocLockError) as caught:
        session.get_entity(Order, 1, LockOptions.SharedRead)
    assert type(caught.value) is kind
    assert not caught.value.retryable
    assert_locks_again(session, wire)


@pytest.mark.parametrize("state", STATES)
def test_a_database_that_does_not_allow_it(
    session: LockingSession, wire: TDSServer, state: int
) -> None:
    wire.database.snapshot = state
    with pytest.raises(LockNotSupported, match=STATES[state]) as caught:
        session.get_entity(Order, 1, LockOptions.SharedRead)
    assert not caught.value.retryable
    assert_locks_again(session, wire)


@pytest.mark.parametrize(("value", "kind"), [(-1, LockNotAvailable), (-3, DeadlockDetected)])
def test_a_named_lock_that_was_not_granted(
    session: LockingSession, wire: TDSServer, value: int, kind: type[LockFailed]
) -> None:
    wire.database.applock = value
    with pytest.raises(kind, match="named lock 'user:42' FOR UPDATE on mssql: "):
        session.lock_key("user:42", lock_timeout=0.3)
    assert_locks_again(session, wire)


def test_a_named_lock_is_the_transactions(session: LockingSession, wire: TDSServer) -> None:
    session.lock_key("user:42")
    assert wire.sessions[-1].applock == 0  # else -999
