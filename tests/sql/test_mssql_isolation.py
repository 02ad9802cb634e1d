"""SQL Server: when the session sets which isolation level, and the fallback of a reader if it is too late.

The server is scripted: these tests do not prove that SNAPSHOT protects a reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta

import pytest
from sqlalchemy import Engine

from sa_doclock import (
    DeadlockDetected,
    LockingSession,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    WrongIsolation,
)
from tests.sql import native
from tests.sql.driver import Script
from tests.sql.models import Customer, Lease, Order
from tests.sql.native import odbc18
from tests.sql.servers import SERVERS, pymssql, serving

pytestmark = pytest.mark.each_value

Scripted = tuple[Engine, Script]
SET_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL SNAPSHOT"
SET_READ_COMMITTED = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
READERS = (LockOptions.SharedRead, LockOptions.SnapshotRead)


@pytest.mark.parametrize("lock", READERS)
def test_a_reader_sets_snapshot_then_begins_then_reads_without_a_hint(
    session: LockingSession, script: Script, lock: LockOptions
) -> None:
    session.get_entity(Order, 1, lock)
    # A transaction is always open there: the commit makes the level count for the next.
    assert script.sent[:2] == [SET_SNAPSHOT, "(commit)"]
    assert "WITH" not in script.sent[2]
    assert len(script.statements) == 3


@pytest.mark.parametrize("lock", READERS)
def test_the_level_is_put_back_when_the_connection_is(
    session: LockingSession, script: Script, lock: LockOptions
) -> None:
    session.get_entity(Order, 1, lock)
    session.release_locks()
    assert script.sent[-1] == SET_READ_COMMITTED
    assert script.sent.index("(rollback)") < script.sent.index(SET_READ_COMMITTED)


Lock = Callable[[LockingSession, LockOptions], object]
WAYS: Mapping[str, Lock] = {
    "get_entity": lambda session, lock: session.get_entity(Order, 1, lock),
    "get_entities": lambda session, lock: session.get_entities(Order, [2, 1], lock),
    "get_document": lambda session, lock: session.get_document(Order, 1, lock),
    "get_documents": lambda session, lock: session.get_documents(Order, [2, 1], lock),
    "entity_set": lambda session, lock: session.scalars(session.entity_set(Order, lock)).all(),
}
each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@each_way
def test_a_shared_read_in_a_read_committed_transaction_takes_the_stronger_lock(
    session: LockingSession, script: Script, way: Lock
) -> None:
    session.get(Customer, 1)
    way(session, LockOptions.SharedRead)
    (header,) = [sql for sql in script.selects if "FROM shop_order" in sql]
    assert "FROM shop_order WITH (UPDLOCK, ROWLOCK" in header
    assert not [sql for sql in script.selects if "WITH" in sql.partition("FROM shop_line")[2]]
    assert set(session.held_locks.values()) == {LockOptions.SharedRead}


@each_way
def test_a_reader_that_opens_the_transaction_takes_no_lock(
    session: LockingSession, script: Script, way: Lock
) -> None:
    way(session, LockOptions.SharedRead)
    assert script.sent[:2] == [SET_SNAPSHOT, "(commit)"]
    assert not [sql for sql in script.selects if "WITH" in sql]


def test_a_shared_read_after_a_for_update_takes_the_stronger_lock(
    session: LockingSession, script: Script
) -> None:
    session.get_entity(Order, 1, LockOptions.ForUpdate)
    session.get_entity(Order, 2, LockOptions.SharedRead)
    assert "WITH (UPDLOCK, ROWLOCK" in script.selects[-1]


def test_a_snapshot_read_in_a_read_committed_transaction_is_refused(
    session: LockingSession, script: Script
) -> None:
    session.get(Customer, 1)
    script.sent.clear()
    with pytest.raises(WrongIsolation):
        session.get_entity(Order, 1, LockOptions.SnapshotRead)
    assert script.sent == []


@each_way
@pytest.mark.parametrize("first", READERS)
def test_a_for_update_under_snapshot_is_refused(
    session: LockingSession, script: Script, first: LockOptions, way: Lock
) -> None:
    session.get_entity(Customer, 1, first)
    script.sent.clear()
    with pytest.raises(WrongIsolation):
        way(session, LockOptions.ForUpdate)
    assert script.sent == []


@each_way
def test_also_where_the_caller_has_chosen_snapshot(scripted: Scripted, way: Lock) -> None:
    engine, script = scripted
    with LockingSession(engine.execution_options(isolation_level="SNAPSHOT")) as session:
        session.get(Customer, 1)
        script.sent.clear()
        with pytest.raises(WrongIsolation, match="open at SNAPSHOT"):
            way(session, LockOptions.ForUpdate)
        assert script.sent == []


@pytest.mark.parametrize("more", [LockOptions.None_, LockOptions.NoKey])
def test_skip_locked_is_refused_in_a_serializable_transaction(
    scripted: Scripted, more: LockOptions
) -> None:
    engine, script = scripted
    skip = LockOptions.ForUpdate | LockOptions.SkipLocked | more
    with LockingSession(engine.execution_options(isolation_level="SERIALIZABLE")) as session:
        session.get(Customer, 1)
        script.sent.clear()
        with pytest.raises(WrongIsolation, match="open at SERIALIZABLE"):
            session.scalars(session.entity_set(Order, skip)).all()
        assert script.sent == []


def test_a_for_update_sets_nothing_where_the_default_is_right(
    session: LockingSession, script: Script
) -> None:
    session.get_entity(Order, 1, LockOptions.ForUpdate)
    assert script.selects == script.statements


def test_an_engine_at_another_level_is_switched_for_a_for_update(scripted: Scripted) -> None:
    engine, script = scripted
    with LockingSession(engine.execution_options(isolation_level="SNAPSHOT")) as session:
        session.get_entity(Order, 1, LockOptions.ForUpdate)
    levels = [sql for sql in script.sent if "ISOLATION LEVEL" in sql]
    assert levels[-2:] == [SET_READ_COMMITTED, SET_READ_COMMITTED]
    assert "UPDLOCK" in script.selects[-1]


def test_autocommit_is_refused_before_anything_is_sent(scripted: Scripted) -> None:
    engine, script = scripted
    with LockingSession(engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
        with pytest.raises(LockNotSupported, match="AUTOCOMMIT"):
            session.get_entity(Order, 1, LockOptions.ForUpdate)
        assert script.sent == []


@pytest.mark.parametrize("connect", [SERVERS["mssql"], pymssql], ids=["pyodbc", "pymssql"])
def test_each_driver_locks(connect: Callable[[Script], Engine]) -> None:
    with serving("mssql", connect) as (engine, script), LockingSession(engine) as session:
        session.get_entity(Order, 1, LockOptions.ForUpdate)
        assert "WITH (UPDLOCK, ROWLOCK" in script.selects[-1]


# --------------------------------------------------------------------------------------------------
# SET LOCK_TIMEOUT stays with the connection: it travels in a separate batch, or is restored.
#
# The server is scripted: that it waits that long is not proved here.

ASK = "SELECT @@LOCK_TIMEOUT"


@pytest.fixture
def over_pymssql() -> Iterator[tuple[LockingSession, Script]]:
    """Open a session on the driver that writes the parameters into the text."""
    with serving("mssql", pymssql) as (engine, script), LockingSession(engine) as session:
        yield session, script


def _timeouts(script: Script) -> list[str]:
    return [sql for sql in script.sent if "LOCK_TIMEOUT" in sql]


@pytest.mark.parametrize(
    ("lock_timeout", "milliseconds"),
    [(0.3, 300), (2, 2000), (0.0001, 1), (0.0011, 2), (timedelta(minutes=1), 60000)],
    ids=str,
)
def test_it_is_in_milliseconds_rounded_up_and_in_the_batch_of_the_select(
    session: LockingSession, script: Script, lock_timeout: float | timedelta, milliseconds: int
) -> None:
    session.get_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=lock_timeout)
    (sent,) = _timeouts(script)
    assert sent.startswith(f"SET LOCK_TIMEOUT {milliseconds}; SELECT ")


def test_a_select_without_parameters_is_given_a_batch_of_its_own(
    session: LockingSession, script: Script
) -> None:
    orders = session.entity_set(Order, LockOptions.ForUpdate, lock_timeout=0.3)
    session.scalars(orders).all()
    (sent,) = _timeouts(script)
    assert sent.startswith("EXEC sp_executesql N'SET LOCK_TIMEOUT 300; SELECT ")
    assert sent.endswith("WITH (UPDLOCK, ROWLOCK)'")


def test_the_statements_of_the_call_have_it_and_none_after_it(
    session: LockingSession, script: Script
) -> None:
    session.get_entity(Lease, 1, LockOptions.ForUpdate, lock_timeout=0.3)
    assert ["SET LOCK_TIMEOUT 300" in sql for sql in script.selects] == [True, True]
    session.get(Customer, 1)
    assert "LOCK_TIMEOUT" not in script.selects[-1]


def test_a_reader_has_it_which_waits_for_a_change_of_the_definition(
    session: LockingSession, script: Script
) -> None:
    session.get_entity(Order, 1, LockOptions.SharedRead, lock_timeout=0.3)
    (sent,) = _timeouts(script)
    assert sent.startswith("SET LOCK_TIMEOUT 300; SELECT shop_order.id")


def test_the_candidates_of_a_join_are_not_waited_for_longer(
    session: LockingSession, script: Script
) -> None:
    leases = session.entity_set(Lease, LockOptions.ForUpdate, lock_timeout=0.3)
    session.scalars(leases).all()
    assert ["LOCK_TIMEOUT 300; SELECT" in sql for sql in script.selects] == [True, True, True]


def test_pymssql_is_asked_what_it_was(over_pymssql: tuple[LockingSession, Script]) -> None:
    session, script = over_pymssql
    script.handshake = {**script.handshake, "@@LOCK_TIMEOUT": 777}
    session.get_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=0.3)
    assert _timeouts(script) == [ASK, "SET LOCK_TIMEOUT 300", "SET LOCK_TIMEOUT 777"]


@pytest.mark.parametrize(("number", "kind"), [(1222, LockNotAvailable), (1205, DeadlockDetected)])
@pytest.mark.parametrize("entity", [Order, Lease])
def test_pymssql_has_it_put_back_after_a_failure_before_the_rollback(
    over_pymssql: tuple[LockingSession, Script],
    number: int,
    kind: type[Exception],
    entity: type[Order | Lease],
) -> None:
    session, script = over_pymssql
    script.failures.append(("UPDLOCK", native.pymssql(number)))
    with pytest.raises(kind):
        session.get_entity(entity, 1, LockOptions.ForUpdate, lock_timeout=0.3)
    assert _timeouts(script) == [ASK, "SET LOCK_TIMEOUT 300", "SET LOCK_TIMEOUT -1"]
    assert script.sent.index("SET LOCK_TIMEOUT -1") < script.sent.index("(rollback)")


def test_pymssql_has_it_put_back_in_a_transaction_that_goes_on_refusing(
    over_pymssql: tuple[LockingSession, Script],
) -> None:
    session, script = over_pymssql
    session.get(Order, 2)
    script.failures.append(("UPDLOCK", native.pymssql(1222)))
    with pytest.raises(LockNotAvailable, match=r"not granted within 0\.3 s"):
        session.get_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=0.3)
    assert script.sent[-1] == "SET LOCK_TIMEOUT -1"


def test_nowait_is_a_hint_and_a_limit_of_its_batch(session: LockingSession, script: Script) -> None:
    session.get_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=0)
    (limit,) = _timeouts(script)
    assert limit.startswith("SET LOCK_TIMEOUT 0; SELECT")
    assert "WITH (UPDLOCK, ROWLOCK, NOWAIT, FORCESEEK)" in script.selects[-1]


# --------------------------------------------------------------------------------------------------
# A batch session's DEADLOCK_PRIORITY stays with the connection, so the session restores it.
#
# The server is scripted: that it then ends this transaction and not another is not proved here.

LOW = "SET DEADLOCK_PRIORITY LOW"


def _priorities(script: Script) -> list[str]:
    return [sql for sql in script.sent if "DEADLOCK_PRIORITY" in sql]


def test_it_is_low_from_the_first_statement_and_put_back(scripted: Scripted) -> None:
    engine, script = scripted
    script.handshake = {**script.handshake, "deadlock_priority": 3}
    with LockingSession(engine, priority="batch") as session:
        session.get_entity(Order, 1, LockOptions.ForUpdate)
        assert _priorities(script) == [LOW]
        assert script.sent.index(LOW) < script.sent.index(script.selects[-1])
    assert _priorities(script) == [LOW, "SET DEADLOCK_PRIORITY 3"]


def test_it_is_put_back_after_a_deadlock(scripted: Scripted) -> None:
    engine, script = scripted
    script.handshake = {**script.handshake, "deadlock_priority": 0}
    script.failures.append(("UPDLOCK", odbc18(1205)))
    with LockingSession(engine, priority="batch") as session, pytest.raises(DeadlockDetected):
        session.get_entity(Order, 1, LockOptions.ForUpdate)
    assert _priorities(script) == [LOW, "SET DEADLOCK_PRIORITY 0"]


def test_each_transaction_has_it(scripted: Scripted) -> None:
    engine, script = scripted
    script.handshake = {**script.handshake, "deadlock_priority": 0}
    with LockingSession(engine, priority="batch") as session:
        for ident in (1, 2):
            with session.locked(Order, ident):
                pass
    assert _priorities(script) == [LOW, "SET DEADLOCK_PRIORITY 0"] * 2


def test_an_interactive_session_leaves_it_alone(scripted: Scripted) -> None:
    engine, script = scripted
    with LockingSession(engine) as session:
        session.get_entity(Order, 1, LockOptions.ForUpdate)
    assert _priorities(script) == []
