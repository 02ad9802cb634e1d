"""The driver finds the rows behind what stands in front of them, in one batch.

pyodbc looks at the first result alone, and a statement may be one. That the server answers a SET
with no count is from "DONE", [MS-TDS] 2.2.7.6, and is not proved here.
"""

from __future__ import annotations

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import ResourceClosedError

from sa_doclock import LockingSession, LockOptions
from tests.sql.models import Order
from tests.sql.servers import take_first_lock
from tests.sql.tds.answers import Ended
from tests.sql.tds.server import TDSServer, said


@pytest.fixture
def engine(engine: Engine, wire: TDSServer) -> Engine:
    """Have asked before what is asked once."""
    take_first_lock(engine)
    wire.sent.clear()
    return engine


def test_a_select_behind_a_set(session: LockingSession, wire: TDSServer) -> None:
    order = session.get_one_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=0.3)
    assert (order.id, order.total) == (1, 1)
    (sent,) = said(wire, "LOCK_TIMEOUT")
    assert str(sent).startswith("sp_prepexec: SET LOCK_TIMEOUT 300; SELECT ")
    assert sent.text.endswith("WITH (UPDLOCK, ROWLOCK, FORCESEEK) WHERE shop_order.id = @P1")


def test_a_select_without_parameters_behind_a_set(session: LockingSession, wire: TDSServer) -> None:
    orders = session.entity_set(Order, LockOptions.ForUpdate, lock_timeout=0.3)
    (order,) = session.scalars(orders).all()
    assert order.id == 1
    (sent,) = said(wire, "LOCK_TIMEOUT")
    assert str(sent).startswith("batch: EXEC sp_executesql N'SET LOCK_TIMEOUT 300; SELECT ")


@pytest.mark.parametrize("before", [(), (Ended(), Ended())], ids=["nothing", "statements"])
def test_the_value_of_a_named_lock(
    session: LockingSession, wire: TDSServer, before: tuple[Ended, ...]
) -> None:
    wire.database.chatter = before
    session.lock_key("user:42")
    (sent,) = said(wire, "sp_getapplock")
    assert sent.how == "sp_prepexec"
    assert sent.in_transaction


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["freetds"], indirect=True)
def test_freetds_finds_it_behind_a_count(session: LockingSession, wire: TDSServer) -> None:
    wire.database.chatter = [Ended(1)]  # as of an UPDATE
    session.lock_key("user:42")


@pytest.mark.parametrize("driver", ["odbc18"], indirect=True)
def test_microsofts_driver_does_not(session: LockingSession, wire: TDSServer) -> None:
    wire.database.chatter = [Ended(1)]
    with pytest.raises(ResourceClosedError, match="does not return rows"):
        session.lock_key("user:42")
