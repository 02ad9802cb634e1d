"""SET LOCK_TIMEOUT, which stays with the connection: in a batch of its own, or put back.

The server is scripted: that it waits for so long is not proved here.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from sa_doclock import DeadlockDetected, LockingSession, LockNotAvailable, LockOptions
from tests.sql import native
from tests.sql.models import Customer, Lease, Order
from tests.sql.script import Script
from tests.sql.servers import pymssql, serving

ASK = "SELECT @@LOCK_TIMEOUT"


@pytest.fixture
def over_pymssql() -> Iterator[tuple[LockingSession, Script]]:
    """Open a session behind the driver that writes the parameters into the text."""
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
