"""SET LOCK_TIMEOUT, which stays with the connection, is put back whatever happens.

The server is scripted: that it waits for so long is not proved here.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from sa_doclock import DeadlockDetected, LockingSession, LockNotAvailable, LockOptions
from tests.sql.models import Lease, Order
from tests.sql.native import odbc18
from tests.sql.script import Script

ASK = "SELECT @@LOCK_TIMEOUT"


def _timeouts(script: Script) -> list[str]:
    return [sql for sql in script.sent if "LOCK_TIMEOUT" in sql]


@pytest.mark.parametrize(
    ("lock_timeout", "milliseconds"),
    [(0.3, 300), (2, 2000), (0.0001, 1), (0.0011, 2), (timedelta(minutes=1), 60000)],
    ids=str,
)
def test_it_is_in_milliseconds_rounded_up(
    session: LockingSession, script: Script, lock_timeout: float | timedelta, milliseconds: int
) -> None:
    session.get_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=lock_timeout)
    assert _timeouts(script) == [ASK, f"SET LOCK_TIMEOUT {milliseconds}", "SET LOCK_TIMEOUT -1"]


def test_what_it_was_is_asked_and_not_guessed(session: LockingSession, script: Script) -> None:
    script.handshake = {**script.handshake, "@@LOCK_TIMEOUT": 777}
    session.get_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=0.3)
    assert _timeouts(script)[-1] == "SET LOCK_TIMEOUT 777"


@pytest.mark.parametrize(("number", "kind"), [(1222, LockNotAvailable), (1205, DeadlockDetected)])
@pytest.mark.parametrize("entity", [Order, Lease])
def test_it_is_put_back_after_a_failure_before_the_rollback(
    session: LockingSession,
    script: Script,
    number: int,
    kind: type[Exception],
    entity: type[Order | Lease],
) -> None:
    script.failures.append(("UPDLOCK", odbc18(number)))
    with pytest.raises(kind):
        session.get_entity(entity, 1, LockOptions.ForUpdate, lock_timeout=0.3)
    assert _timeouts(script) == [ASK, "SET LOCK_TIMEOUT 300", "SET LOCK_TIMEOUT -1"]
    assert script.sent.index("SET LOCK_TIMEOUT -1") < script.sent.index("(rollback)")


def test_it_is_put_back_in_a_transaction_that_goes_on_refusing(
    session: LockingSession, script: Script
) -> None:
    session.get(Order, 2)
    script.failures.append(("UPDLOCK", odbc18(1222)))
    with pytest.raises(LockNotAvailable, match=r"not granted within 0\.3 s"):
        session.get_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=0.3)
    assert script.sent[-1] == "SET LOCK_TIMEOUT -1"


def test_nowait_is_a_hint_and_touches_no_setting(session: LockingSession, script: Script) -> None:
    session.get_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=0)
    assert _timeouts(script) == []
    assert "WITH (UPDLOCK, ROWLOCK, NOWAIT)" in script.selects[-1]
