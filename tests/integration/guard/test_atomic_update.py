"""atomic_update(): a relative UPDATE of headers passes without their locks, and waits for a holder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions, atomic_update
from tests.integration.guard.models import Line, Order
from tests.integration.guard.steps import refused
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.quick

ADDS = sa.update(Order).where(Order.id == 1, Order.total >= 30).values(total=Order.total + 5)


def test_it_needs_no_lock(session: LockingSession, stored: Callable[[Any, Any], Any]) -> None:
    with refused(session, Order, 1):
        session.execute(ADDS)
    result: Any = session.execute(atomic_update(ADDS))
    assert result.rowcount == 1
    session.commit()
    assert stored(Order.total, 1) == 35
    assert session.execute(atomic_update(ADDS.where(Order.id == 7))).rowcount == 0  # type: ignore[attr-defined]


def test_a_value_is_refused() -> None:
    for values in ({"total": 5}, {Order.total: sa.literal(5)}, {}):
        with pytest.raises(ValueError, match="SQL expression"):
            atomic_update(sa.update(Order).values(values))
    with pytest.raises(TypeError):
        atomic_update(sa.delete(Order))  # type: ignore[type-var]


def test_of_parts_keys_and_given_values_it_is_guarded(session: LockingSession) -> None:
    with refused(session, Order, 1):
        session.execute(atomic_update(sa.update(Line).filter_by(id=1).values(value=Line.value + 1)))
    with refused(session, Order, 1):
        session.execute(atomic_update(sa.update(Order).filter_by(id=1).values(id=Order.id + 100)))
    given = sa.update(Order).where(Order.id == 2).values(total=Order.total + sa.bindparam("more"))
    with refused(session, Order, 2):
        session.execute(atomic_update(given), {"more": 1, "customer_id": 2})


def _locks(session: LockingSession) -> Order:
    return session.get_one_entity(Order, 1, LockOptions.ForUpdate)


def _saves(session: LockingSession) -> None:
    session.get_one(Order, 1).total = 40
    session.save_changes()


def _adds(session: LockingSession) -> None:
    session.execute(atomic_update(ADDS))
    session.commit()


def test_it_waits_for_who_holds_the_document(
    documents: Database,
    alice: Actor[LockingSession],
    bob: Actor[LockingSession],
    stored: Callable[[Any, Any], Any],
) -> None:
    held = alice.does(_locks)
    added = bob.starts(_adds)
    wait_until_blocked(waiter=bob, holder=alice, step=added)
    alice.does(_saves)
    added.result()
    assert stored(Order.total, 1) == 45
    assert documents
    assert held
