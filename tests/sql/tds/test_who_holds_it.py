"""The question for a row's holder uses a connection of its own, whose short limit stays with it."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from sa_doclock import LockingSession, LockNotAvailable, LockNotSupported, LockOptions, lock_waits
from tests.sql.models import Customer, Order
from tests.sql.tds.server import TDSServer, said


def test_it_is_asked_beside_the_pool(engine: Engine, wire: TDSServer) -> None:
    with LockingSession(engine) as session:
        session.get(Customer, 1)  # has the only connection of the pool
        assert lock_waits(engine) == []
    (asked,) = said(wire, "dm_os_waiting_tasks")
    assert [one.settings.lock_timeout for one in wire.sessions] == [-1, 500]
    assert wire.sessions[asked.session] is wire.sessions[1]


def test_a_failed_lock_asks_after_its_rollback(engine: Engine, wire: TDSServer) -> None:
    wire.database.failures.append(("UPDLOCK", 1222))
    with LockingSession(engine, diagnose=True) as session:
        with pytest.raises(LockNotAvailable):
            session.get_entity(Order, 1, LockOptions.ForUpdate | LockOptions.NoWait)
        session.get_entity(Order, 1, LockOptions.ForUpdate)
    assert {sent.session for sent in said(wire, "dm_tran_locks")} == {2}  # 1 asked for the limit
    assert [one.settings.lock_timeout for one in wire.sessions] == [-1, -1, 500]


@pytest.mark.parametrize("number", [300, 262])  # 262 is Azure SQL's
def test_an_account_that_may_not_see_it(engine: Engine, wire: TDSServer, number: int) -> None:
    wire.database.failures.append(("dm_os_waiting_tasks", number))
    with pytest.raises(LockNotSupported, match="needs GRANT VIEW SERVER STATE"):
        lock_waits(engine)
