"""SQL Server: which isolation level is set when, and what a reader takes where it is too late.

The server is scripted: that SNAPSHOT protects a reader is not proved here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from sqlalchemy import Engine

from sa_doclock import LockingSession, LockNotSupported, LockOptions, WrongIsolation
from tests.sql.models import Customer, Order
from tests.sql.script import Script
from tests.sql.servers import SERVERS, pymssql, serving

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
