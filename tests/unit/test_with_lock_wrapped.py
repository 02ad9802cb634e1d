"""A select with a lock, inside a statement of another kind: the session must not overlook it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Select, select

from sa_doclock import LockingSession, LockNotSupported, LockOptions
from tests.support.models import Order
from tests.support.rows import rows

Locked = Select[Any]

WRAPPED: dict[str, Callable[[LockingSession, Locked], Any]] = {
    "from_statement": lambda session, locked: session.execute(select(Order).from_statement(locked)),
    "scalars of from_statement": lambda session, locked: session.scalars(
        select(Order).from_statement(locked)
    ),
    "Query.from_statement": lambda session, locked: (
        session.query(Order).from_statement(locked).all()
    ),
    "union": lambda session, locked: session.execute(locked.union_all(select(Order))),
    "union, limited": lambda session, locked: session.execute(
        locked.limit(1).union_all(select(Order))
    ),
    "union of a union": lambda session, locked: session.execute(
        select(Order).union_all(locked.union_all(select(Order)))
    ),
    "from_statement of a union": lambda session, locked: session.execute(
        select(Order).from_statement(locked.limit(1).union_all(select(Order)))
    ),
    "second of a union": lambda session, locked: session.execute(select(Order).union_all(locked)),
    "distinct": lambda session, locked: session.execute(locked.distinct()),
    "group by": lambda session, locked: session.execute(locked.group_by(Order.id)),
}


@pytest.mark.parametrize("lock", [LockOptions.SharedRead, LockOptions.ForUpdate])
@rows("execute", WRAPPED.values(), ids=WRAPPED)
def test_it_is_not_supported(
    session: LockingSession,
    sent: list[str],
    execute: Callable[[LockingSession, Locked], Any],
    lock: LockOptions,
) -> None:
    with pytest.raises(LockNotSupported):
        execute(session, session.entity_set(Order, lock))
    assert sent == []
