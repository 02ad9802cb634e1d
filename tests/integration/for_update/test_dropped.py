"""A with_for_update() of which SQLAlchemy sends nothing is refused before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockingSession, LockNotSupported
from tests.integration.locking.steps import finds_held
from tests.support.models import Order

pytestmark = pytest.mark.read_committed

FIRST = sa.select(Order).where(Order.id == 1)
LOCKED = sa.select(Order).from_statement(FIRST.with_for_update())
UNIONS: dict[str, Any] = {
    "a union": sa.union(FIRST, FIRST).with_for_update(),
    "from a union": sa.select(Order).from_statement(sa.union_all(FIRST, FIRST).with_for_update()),
}


@pytest.mark.parametrize("statement", UNIONS.values(), ids=UNIONS)
def test_of_a_union(session: LockingSession, statement: Any) -> None:
    sent: list[str] = []
    event.listen(session.get_bind(), "after_cursor_execute", lambda *args: sent.append(args[2]))
    with pytest.raises(LockNotSupported, match="UNION"):
        session.execute(statement)
    assert not sent


def test_from_a_statement(session: LockingSession, other: LockingSession) -> None:
    assert session.scalars(LOCKED).one().total == 30
    assert finds_held()(other)


def test_a_union_without_a_lock_is_executed(session: LockingSession) -> None:
    found = session.scalars(sa.select(Order).from_statement(sa.union(FIRST, FIRST))).all()
    assert [order.id for order in found] == [1]
