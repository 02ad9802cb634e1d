"""A batch session's DEADLOCK_PRIORITY, which stays with the connection, is put back.

The server is scripted: that it then ends this transaction and no other is not proved here.
"""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from sa_doclock import DeadlockDetected, LockingSession, LockOptions
from tests.sql.models import Order
from tests.sql.native import odbc18
from tests.sql.script import Script

Scripted = tuple[Engine, Script]
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
