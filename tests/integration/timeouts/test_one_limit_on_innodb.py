"""A lock_timeout is one limit for all rows that one call asks for, also in whole seconds."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from sa_doclock.dialects.registry import strategy_for
from tests.integration.locking.steps import locks, recorded, save
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Order
from tests.support.waits import wait_until, wait_until_blocked

pytestmark = pytest.mark.databases("mysql", "mariadb")

ForUpdate = LockOptions.ForUpdate
WAITS_LONGER = {
    "mysql": "SELECT time > 0 FROM performance_schema.processlist WHERE id = :id",
    "mariadb": "SELECT time_ms > 100 FROM information_schema.processlist WHERE id = :id",
}
ENDED_BY_LIMIT = {"mysql": 3024, "mariadb": 1969}  # of the whole statement


@pytest.mark.parametrize("seconds", [2, 2.5])
@pytest.mark.parametrize("way", [LockingSession.get_entities, LockingSession.get_documents])
def test_two_rows_have_one_limit(
    database: Database,
    alice: Actor[LockingSession],
    bob: Actor[LockingSession],
    carol: Actor[LockingSession],
    way: Any,
    seconds: float,
) -> None:
    """Carol waits for order 1, gets it, and then waits for order 2."""

    def lock_both(session: LockingSession) -> Any:
        return way(session, Order, [1, 2], ForUpdate, lock_timeout=seconds)

    alice.does(locks(Order, 1))
    bob.does(locks(Order, 2))
    step = carol.starts(lock_both)
    wait_until_blocked(waiter=carol, holder=alice, step=step)
    waits = sa.text(WAITS_LONGER[database.name]).bindparams(id=carol.server_pid())
    with database.observer().connect() as server:  # the limit of the statement is 30 ms longer
        wait_until(lambda: server.execute(waits).scalar())
    alice.does(save)
    with pytest.raises(LockNotAvailable, match=f"not granted within {seconds:g} s") as caught:
        step.result(10)
    assert caught.value.orig is not None
    code = strategy_for(database.engine()).errors.native_code(caught.value.orig)
    assert code == ENDED_BY_LIMIT[database.name]
    bob.does(save)
    assert len(carol.does(lock_both)) == 2


@pytest.mark.databases("mariadb")
@pytest.mark.parametrize(("keys", "limited"), [(50, True), (51, False)])
def test_many_keys_are_not_limited_as_a_whole(
    session: LockingSession, engine: sa.Engine, keys: int, limited: bool
) -> None:
    """Reading many rows takes time without a wait."""
    with recorded(engine) as statements:
        session.get_entities(Order, range(1, keys + 1), ForUpdate, lock_timeout=30)
    (lock,) = [statement for statement in statements if "FOR UPDATE" in statement]
    assert lock.startswith("SET STATEMENT max_statement_time=30.030 FOR") is limited
    assert "WAIT 30" in lock


@pytest.mark.databases("mariadb")
def test_the_last_try_has_time_on_a_busy_server(
    session: LockingSession, other: LockingSession, engine: sa.Engine
) -> None:
    """It does not wait, so that it may take longer than a limit of a tenth of a second."""
    other.get_one_entity(Order, 1, ForUpdate)
    with recorded(engine) as statements, pytest.raises(LockNotAvailable):
        session.get_entity(Order, 1, ForUpdate, lock_timeout=0.1)
    first, last = [statement for statement in statements if "FOR UPDATE" in statement]
    assert first.startswith("SET STATEMENT max_statement_time=0.100 FOR")
    assert last.startswith("SET STATEMENT max_statement_time=0.250 FOR")
    assert last.endswith("NOWAIT")
