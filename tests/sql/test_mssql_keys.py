"""The answers of sp_getapplock by value become our errors; the key stays short.

The server is scripted: that it answers so when it should is not proved here.
"""

from __future__ import annotations

import pytest
from sqlalchemy.exc import OperationalError, PendingRollbackError

from sa_doclock import (
    DeadlockDetected,
    LockFailed,
    LockingSession,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    WrongIsolation,
)
from tests.sql.models import Customer, Order
from tests.sql.native import odbc18
from tests.sql.script import Script
from tests.sql.servers import pymssql, serving

APPLOCK = "sp_getapplock"
REFUSED: dict[int, type[LockFailed]] = {
    -1: LockNotAvailable,
    -2: LockNotAvailable,
    -3: DeadlockDetected,
}


def answer(script: Script, value: int) -> None:
    script.handshake = {**script.handshake, APPLOCK: value}


@pytest.mark.parametrize("value", [0, 1])  # at once, or after a wait
def test_granted(session: LockingSession, script: Script, value: int) -> None:
    answer(script, value)
    session.lock_key("user:42")
    session.lock_key("user:42")
    assert [APPLOCK in sql for sql in script.statements] == [True]


@pytest.mark.parametrize(("value", "kind"), REFUSED.items())
def test_refused(
    session: LockingSession, script: Script, value: int, kind: type[LockFailed]
) -> None:
    answer(script, value)
    with pytest.raises(LockFailed, match="named lock 'user:42' FOR UPDATE on mssql: ") as caught:
        session.lock_key("user:42", lock_timeout=0.3)
    error = caught.value
    assert type(error) is kind
    assert error.orig is None
    assert error.retryable
    assert isinstance(error, OperationalError)
    assert (error.entity, error.ident, error.lock) == (None, "user:42", LockOptions.ForUpdate)
    assert script.sent[-3] == "(rollback)"  # it had opened the transaction
    assert not session.in_transaction()


@pytest.mark.parametrize("value", REFUSED)
def test_refused_in_an_open_transaction_which_does_nothing_more(
    session: LockingSession, script: Script, value: int
) -> None:
    session.get(Customer, 1)
    answer(script, value)
    with pytest.raises(REFUSED[value]):
        session.lock_key("user:42")
    script.sent.clear()
    with pytest.raises(PendingRollbackError, match="named lock 'user:42'"):
        session.commit()
    assert script.sent == []


def test_a_call_that_the_server_does_not_take(session: LockingSession, script: Script) -> None:
    answer(script, -999)
    with pytest.raises(LockNotSupported, match=r"named lock 'user:42' .* returned -999"):
        session.lock_key("user:42")


def test_an_error_by_number_is_of_its_class(session: LockingSession, script: Script) -> None:
    script.failures.append((APPLOCK, odbc18(1205)))
    with pytest.raises(DeadlockDetected, match="named lock 'user:42' FOR UPDATE on mssql") as found:
        session.lock_key("user:42")
    assert found.value.orig is not None


def test_it_is_refused_in_a_snapshot(session: LockingSession, script: Script) -> None:
    session.get_entity(Order, 1, LockOptions.SharedRead)
    with pytest.raises(WrongIsolation, match="the transaction is open at SNAPSHOT"):
        session.lock_key("user:42", shared=True)
    assert not any(APPLOCK in sql for sql in script.sent)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("x" * 255, "x" * 255),
        ("x" * 256, "x" * 222 + "#85e62acd750c4eb56b7b6a1d66dca5bf"),
    ],
    ids=len,
)
def test_a_long_key_is_hashed_not_cut_off(
    session: LockingSession, script: Script, key: str, name: str
) -> None:
    session.lock_key(key)
    assert script.statements[-1].partition("  -- ")[2] == repr(name)
    assert len(name) == 255


def test_pymssql_gets_the_same_answer() -> None:
    with serving("mssql", pymssql) as (engine, script), LockingSession(engine) as session:
        session.lock_key("user:42", lock_timeout=5)
        (sent,) = script.statements
        assert sent.startswith("DECLARE @doclock int; EXEC @doclock = sp_getapplock @Resource = %(")
        assert sent.endswith("@LockTimeout = 5000; SELECT @doclock  -- 'user:42'")
