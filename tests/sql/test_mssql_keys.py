"""SQL Server: named locks, locks by key, the first question, and the orders that explore() finds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from sqlalchemy import Engine, update
from sqlalchemy.exc import OperationalError, PendingRollbackError
from sqlalchemy.orm import Session, sessionmaker

from sa_doclock import (
    DeadlockDetected,
    LockFailed,
    LockingSession,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    WrongIsolation,
)
from sa_doclock.testing import explore
from tests.sql.driver import Script
from tests.sql.models import Customer, Depot, Order, Voucher
from tests.sql.native import odbc18
from tests.sql.servers import pymssql, pyodbc, serving
from tests.support.models import Order as ColumnsOrder

# --------------------------------------------------------------------------------------------------
# The results of sp_getapplock become our errors; the key stays short.
#
# The server is scripted: that it answers this way when it should is not proved here.

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
    assert script.sent[-3] == "(rollback)"  # it opened the transaction
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


# --------------------------------------------------------------------------------------------------
# SQL Server: a lock by key reads all columns of the row, so no index that has them answers it.
#
# The server is scripted: which plan it chooses is not proved here.

LOCKS = (LockOptions.ForUpdate, LockOptions.ForUpdate | LockOptions.NoWait)


@pytest.mark.parametrize("lock", LOCKS)
def test_a_deferred_column_is_read_with_the_lock(
    session: LockingSession, script: Script, lock: LockOptions
) -> None:
    session.get_entity(ColumnsOrder, 1, lock)
    (select,) = {sql for sql in script.statements if "UPDLOCK" in sql}
    assert "remark" in select.partition("FROM")[0]


def test_a_read_without_a_lock_leaves_it_out(session: LockingSession, script: Script) -> None:
    session.get_entity(ColumnsOrder, 1)
    assert not [sql for sql in script.statements if "remark" in sql]


# --------------------------------------------------------------------------------------------------
# SQL Server locks many composite keys with several short statements, in key order.

KEYS = [(2026, number) for number in range(1000)]


def test_a_thousand_keys_are_no_statement_of_a_thousand_alternatives() -> None:
    with serving("mssql") as (engine, script), LockingSession(engine) as session:
        session.get_entities(Voucher, list(reversed(KEYS)), LockOptions.ForUpdate)
    locking = [sql for sql in script.selects if "UPDLOCK" in sql]
    assert len(locking) == 10
    numbers = []
    for sql in locking:
        values = [int(value) for value in sql.partition("-- ")[2].split(", ")]
        assert len(values) == 200
        numbers += [value for value in values if value != 2026]
    assert numbers == list(range(1000))


# --------------------------------------------------------------------------------------------------
# SQL Server: an engine's first lock on a lent Connection, in each driver's form.
#
# The server is scripted.  On the wire: tests/sql/tds/test_isolation.py.

each_driver = pytest.mark.parametrize("connect", [pyodbc, pymssql])


@each_driver
@pytest.mark.parametrize("lock_timeout", [None, 0.3])
def test_it_is_saved_and_released(
    connect: Callable[[Script], Engine], lock_timeout: float | None
) -> None:
    script = Script()
    engine = connect(script)
    with engine.connect() as lent, LockingSession(lent) as session:
        session.get_one_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=lock_timeout)
        session.execute(update(Customer).values(name="Zoe"))
        session.save_changes()
        assert not lent.in_transaction()
        written = next(n for n, sql in enumerate(script.sent) if sql.startswith("UPDATE"))
        assert script.sent[written + 1] == "(commit)"
    engine.dispose()


@each_driver
def test_the_lender_ends_its_own_transaction(connect: Callable[[Script], Engine]) -> None:
    script = Script()
    engine = connect(script)
    with engine.connect() as lent, lent.begin(), LockingSession(lent) as session:
        session.get_one_entity(Order, 1, LockOptions.ForUpdate)
        script.sent.clear()
        session.save_changes()
        assert script.sent == []
        assert lent.in_transaction()
    engine.dispose()


# --------------------------------------------------------------------------------------------------
# SQL Server: explore() finds its statement orders; the server is scripted, and locks nothing.


def add_ten(factory: sessionmaker[Session]) -> None:
    with factory() as session:
        session.get_one(Order, 1).total += 10
        session.commit()


def add_ten_under_lock(factory: sessionmaker[LockingSession], entity: type[Order | Depot]) -> None:
    with factory() as session, session.locked(entity, 1) as order:
        order.total += 10


def nothing() -> None:
    pass


def updates_of(script: Script) -> int:
    return sum(sql.startswith("UPDATE") for sql in script.sent)


def test_all_orders_of_reads_that_take_locks(scripted: tuple[Engine, Script]) -> None:
    engine, script = scripted
    add = partial(add_ten, sessionmaker(engine))
    result = explore(add, add, before=nothing, invariant=lambda: True)
    assert result.complete, result.incomplete_because
    every = explore(add, add, before=nothing, invariant=lambda: True, reduce=False)
    assert 1 < result.runs < every.runs
    assert updates_of(script) > 2 * result.runs


def test_the_hints_of_locks_on_other_tables_leave_one_order(
    scripted: tuple[Engine, Script],
) -> None:
    engine, script = scripted
    factory = sessionmaker(engine, class_=LockingSession)
    first, second = (partial(add_ten_under_lock, factory, one) for one in (Order, Depot))
    apart = explore(first, second, before=nothing, invariant=lambda: True)
    same = explore(first, first, before=nothing, invariant=lambda: True)
    assert (apart.runs, apart.complete) == (1, True)
    assert same.runs > 1
    assert any("UPDLOCK" in sql for sql in script.selects)


def test_the_timeline_has_the_statements(scripted: tuple[Engine, Script]) -> None:
    engine, _ = scripted
    add = partial(add_ten_under_lock, sessionmaker(engine, class_=LockingSession), Order)
    (failure, *_) = explore(add, add, before=nothing, invariant=lambda: False).failures
    assert "UPDLOCK" in failure.timeline
    assert "tests/sql/test_mssql_keys.py:" in failure.timeline
