"""A question of the library that meets the end of the transaction: on a node of a cluster, error 1213.

Another node's commit ends the transaction that is in its way, which hears of it late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import select
from sqlalchemy.exc import PendingRollbackError

from sa_doclock import DeadlockDetected, LockingSession, LockOptions
from tests.sql.models import Customer, Order
from tests.sql.script import Script
from tests.sql.servers import OperationalError, serving

Act = Callable[[LockingSession], object]

WITHIN = select(Customer.id).where(Customer.id == 1).with_for_update().scalar_subquery()
ACTS: dict[str, Act] = {
    "by key": lambda session: session.get_entity(Customer, 1, LockOptions.ForUpdate),
    "adopted": lambda session: session.scalars(select(Customer).with_for_update()).all(),
    "within a statement": lambda session: session.scalars(
        select(Order.id).where(Order.id == WITHIN)
    ),
    "within an adopted one": lambda session: session.scalars(
        select(Order).where(Order.id == WITHIN).with_for_update()
    ),
}


@pytest.fixture(params=["mysql", "mariadb"])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[LockingSession, Script]]:
    """A session that holds a document, and its server."""
    with serving(request.param) as (engine, script), LockingSession(engine) as session:
        session.get_entity(Order, 1, LockOptions.ForUpdate)
        yield session, script


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_nothing_follows_until_the_rollback(
    served: tuple[LockingSession, Script], act: Act
) -> None:
    session, script = served
    for question in ("information_schema.tables", "SHOW CREATE TABLE"):
        script.failures.append((question, OperationalError(1213, "Deadlock found")))
    with pytest.raises(DeadlockDetected):
        act(session)
    script.failures.clear()
    assert not session.held_locks
    for escape in (
        lambda: session.scalars(select(Order.id)).all(),
        lambda: session.get_entity(Order, 1, LockOptions.ForUpdate),
        session.commit,
    ):
        with pytest.raises(PendingRollbackError):
            escape()
    session.rollback()
    session.get_entity(Order, 1, LockOptions.ForUpdate)
    assert session.held_locks
