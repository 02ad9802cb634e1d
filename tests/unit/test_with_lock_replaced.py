"""A change of a select after it got its lock may not take the lock away unnoticed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from sqlalchemy import Select, select
from sqlalchemy.dialects import mssql
from sqlalchemy.orm import Session

from sa_doclock import LockingSession, LockMisuse, LockOptions, with_lock
from sa_doclock.sqlalchemy_internals import ForUpdate, for_update_of, hint_of
from tests.support.models import Customer, Invoice, Order

ORDERS = Order.__table__
Change = Callable[[Select[Any]], Select[Any]]

REPLACED: Mapping[str, Change] = {
    "with_for_update": lambda locked: locked.with_for_update(),  # of all tables
    "read": lambda locked: locked.with_for_update(read=True, of=ORDERS),
    "nowait": lambda locked: locked.with_for_update(nowait=True, of=ORDERS),
    "skip_locked": lambda locked: locked.with_for_update(skip_locked=True, of=ORDERS),
    "key_share": lambda locked: locked.with_for_update(key_share=True, of=ORDERS),
    "of a column": lambda locked: locked.with_for_update(of=Order.id),
    "hint": lambda locked: locked.with_hint(Order, "WITH (NOLOCK)", "mssql"),
    "hint of every database": lambda locked: locked.with_hint(Order, "WITH (NOLOCK)"),
}
HINTED = select(Order).with_hint(Order, "/* mine */", "mssql").with_hint(Order, "/* any */")
LEFT: Mapping[str, Change] = {
    "two hints before the lock": lambda _: with_lock(HINTED, LockOptions.ForUpdate),
    "the same": lambda locked: locked.with_for_update(of=ORDERS),
    "hint of another table": lambda locked: locked.with_hint(Customer, "WITH (NOLOCK)", "mssql"),
    "hint of another database": lambda locked: locked.with_hint(Order, "FORCE INDEX", "mysql"),
    "hint before the lock": lambda _: with_lock(
        select(Order).with_hint(Order, "WITH (NOLOCK)", "mssql"), LockOptions.ForUpdate
    ),
}


@pytest.mark.parametrize("change", REPLACED.values(), ids=REPLACED)
def test_a_lock_that_was_replaced_is_refused(
    session: LockingSession, sent: list[str], change: Change
) -> None:
    with pytest.raises(LockMisuse, match="has replaced the lock"):
        session.execute(change(with_lock(select(Order), LockOptions.ForUpdate)))
    assert sent == []


def test_the_lock_is_the_hint_in_force() -> None:
    """Of hints that the statement had before, one for the same database, and one for all."""
    locked = with_lock(HINTED, LockOptions.ForUpdate)
    text = str(locked.compile(dialect=mssql.dialect()))  # type: ignore[no-untyped-call]
    assert "WITH (UPDLOCK, ROWLOCK)" in text
    assert hint_of(locked, ORDERS, "mssql") == "WITH (UPDLOCK, ROWLOCK)"


@pytest.mark.parametrize("change", LEFT.values(), ids=LEFT)
def test_a_lock_that_is_there_runs(session: LockingSession, change: Change) -> None:
    assert session.scalars(change(with_lock(select(Order), LockOptions.ForUpdate))).all()


def test_a_for_update_is_refused_where_a_snapshot_was_asked_for(session: LockingSession) -> None:
    locked = with_lock(select(Order), LockOptions.SnapshotRead)
    with pytest.raises(LockMisuse):
        session.execute(locked.with_for_update())


def test_what_is_read_of_with_for_update_and_with_hint() -> None:
    statement = select(Order)
    assert for_update_of(statement) is None
    assert hint_of(statement, ORDERS, "mssql") is None
    statement = statement.with_for_update(of=ORDERS, read=True, nowait=True)
    assert for_update_of(statement) == ForUpdate((id(ORDERS),), True, True, False)
    statement = statement.with_hint(Order, "A", "mssql").with_hint(Customer, "B", "mssql")
    assert hint_of(statement, ORDERS, "mssql") == "A"
    assert hint_of(statement, ORDERS, "mysql") is None
    assert hint_of(statement.with_hint(ORDERS, "C"), ORDERS, "mssql") == "C"


@pytest.mark.parametrize("kind", [LockingSession, Session])
def test_columns_alone_of_a_class_that_is_mapped_with_a_join_can_be_locked(
    session: LockingSession, kind: type[Session]
) -> None:
    locked = with_lock(select(Invoice.id), LockOptions.ForUpdate)
    with kind(session.get_bind()) as another:
        assert another.execute(locked).all() == [(1,), (2,)]
