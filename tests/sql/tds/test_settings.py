"""LOCK_TIMEOUT and DEADLOCK_PRIORITY stay with a connection: none of ours is left on it.

That the server puts back what sp_executesql and sp_prepexec have set is documented ("SET
statements"), and is not proved here.
"""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, select, text

from sa_doclock import DeadlockDetected, LockFailed, LockingSession, LockNotAvailable, LockOptions
from tests.sql.models import Lease, Order
from tests.sql.tds.server import TDSServer, said


def _timeouts(wire: TDSServer) -> set[int]:
    return {session.settings.lock_timeout for session in wire.sessions}


def test_a_limit_is_gone_with_its_statement(session: LockingSession, wire: TDSServer) -> None:
    for entity in (Order, Lease):
        session.get_entity(entity, 1, LockOptions.ForUpdate, lock_timeout=0.3)
    session.scalars(session.entity_set(Order, LockOptions.ForUpdate, lock_timeout=0.3)).all()
    assert len(said(wire, "SET LOCK_TIMEOUT 300")) == 4  # a lease is read by a second statement
    assert _timeouts(wire) == {-1}


def test_a_set_that_skips_rows_limits_its_wait_for_a_table(
    session: LockingSession, wire: TDSServer
) -> None:
    """READPAST skips row locks alone: "Table hints", READPAST."""
    skipping = LockOptions.ForUpdate | LockOptions.SkipLocked
    session.scalars(session.entity_set(Order, skipping, lock_timeout=0.3)).all()
    (sent,) = said(wire, "READPAST")
    assert "SET LOCK_TIMEOUT 300" in sent.text
    wire.database.failures.append(("READPAST", 1222))
    with pytest.raises(LockNotAvailable):
        session.scalars(session.entity_set(Order, skipping, lock_timeout=0.3)).all()
    session.rollback()
    assert _timeouts(wire) == {-1}


@pytest.mark.parametrize("number", [1222, 1205])
def test_also_after_a_failure(session: LockingSession, wire: TDSServer, number: int) -> None:
    orders = session.entity_set(Order, LockOptions.ForUpdate, lock_timeout=0.3)
    for lock in (
        lambda: session.get_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=0.3),
        lambda: session.scalars(orders).all(),
    ):
        wire.database.failures.append(("UPDLOCK", number))
        with pytest.raises(LockFailed):
            lock()
        session.rollback()
    assert len(said(wire, "SET LOCK_TIMEOUT 300")) == 2
    assert _timeouts(wire) == {-1}


def test_one_in_a_batch_of_the_connection_would_stay(engine: Engine) -> None:
    with engine.connect() as connection:
        connection.execute(text("SET LOCK_TIMEOUT 777"))
    with engine.connect() as connection:
        assert connection.execute(text("SELECT @@LOCK_TIMEOUT")).scalar_one() == 777


def test_a_batch_sessions_priority_is_put_back(engine: Engine, wire: TDSServer) -> None:
    with LockingSession(engine, priority="batch") as session:
        session.get_entity(Order, 1, LockOptions.ForUpdate)
        assert wire.sessions[0].settings.deadlock_priority == -5
    assert wire.sessions[0].settings.deadlock_priority == 0


def test_also_after_a_deadlock(engine: Engine, wire: TDSServer) -> None:
    wire.database.failures.append(("UPDLOCK", 1205))
    with LockingSession(engine, priority="batch") as session, pytest.raises(DeadlockDetected):
        session.get_entity(Order, 1, LockOptions.ForUpdate)
    with LockingSession(engine) as session:
        session.get_entity(Order, 1, LockOptions.ForUpdate)
    assert wire.sessions[-1].settings.deadlock_priority == 0


NOWAIT = {
    "lock": lambda s: s.get_entity(Order, 1, LockOptions.ForUpdate | LockOptions.NoWait),
    "snapshot": lambda s: s.get_entity(Order, 1, LockOptions.SharedRead | LockOptions.NoWait),
    "set": lambda s: s.scalars(
        s.entity_set(Order, LockOptions.ForUpdate | LockOptions.NoWait)
    ).all(),
    "adopted": lambda s: s.get(Order, 1, with_for_update={"nowait": True}),
    "adopted, Core": lambda s: s.execute(
        select(Order.__table__.c.id).with_for_update(nowait=True)
    ).all(),
}


@pytest.mark.parametrize("way", NOWAIT)
def test_nowait_does_not_wait_for_ddl_either(engine: Engine, wire: TDSServer, way: str) -> None:
    """The hint does not count for the lock of the definition of the table, which comes first."""
    with LockingSession(engine) as session:
        NOWAIT[way](session)
        (sent,) = [one for one in wire.sent if "FROM shop_order" in one.text]
        assert "SET LOCK_TIMEOUT 0; SELECT" in sent.text
        assert session.connection().exec_driver_sql("SELECT @@LOCK_TIMEOUT").scalar_one() == -1
