"""A lambda_stmt() is guarded, and takes a lock, as the statement that it stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockMisuse, LockOptions, UnlockedWrite, with_lock
from tests.integration.guard.models import Line, Order, Tax
from tests.integration.guard.steps import hold, refused

ForUpdate = LockOptions.ForUpdate


def _move(line: int, order: int) -> Any:
    return sa.lambda_stmt(lambda: sa.update(Line).where(Line.id == line).values(order_id=order))


def _insert(ident: int, order: int) -> Any:
    return sa.lambda_stmt(lambda: sa.insert(Line).values(id=ident, order_id=order, value=1))


def _added(line: int) -> Any:
    return sa.lambda_stmt(lambda: sa.update(Line).values(value=0)) + (
        lambda s: s.where(Line.id == line)
    )


def _spoiled(line: int) -> Any:
    return sa.lambda_stmt(lambda: sa.delete(Tax).where(Tax.line_id == line)).spoil()


# The statement, and the orders that it writes to.  The same lambda comes twice, with other values.
CASES: dict[str, tuple[Any, set[int]]] = {
    "move": (_move(1, 2), {1, 2}),
    "stay": (_move(1, 1), {1}),
    "insert": (_insert(91, 1), {1}),
    "insert elsewhere": (_insert(92, 2), {2}),
    "criteria added": (_added(1), {1}),
    "spoiled": (_spoiled(1), {1}),
}


@pytest.mark.parametrize(("statement", "orders"), CASES.values(), ids=CASES)
def test_a_write_needs_the_locks(session: LockingSession, statement: Any, orders: set[int]) -> None:
    hold(session, Order, *orders)
    session.execute(statement)
    session.rollback()
    for missing in orders:
        hold(session, Order, *orders - {missing})
        with pytest.raises(UnlockedWrite, match=f"Order {missing}"):
            session.execute(statement)
        session.rollback()


def test_none_is_sent(session: LockingSession) -> None:
    with refused(session, Order, 1):
        session.execute(_insert(93, 1))


READS: dict[str, Callable[[LockingSession, Any], Any]] = {
    "execute": lambda session, statement: session.execute(statement).scalar_one(),
    "scalars": lambda session, statement: session.scalars(statement).one(),
    "scalar": lambda session, statement: session.scalar(statement),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_set_is_locked(session: LockingSession, read: Callable[..., Any]) -> None:
    locked = with_lock(sa.select(Order), ForUpdate)
    for ident in (1, 2):
        # SQLAlchemy wraps what a lambda refers to, unless it is set not to.
        statement = sa.lambda_stmt(lambda: locked, enable_tracking=False)
        statement += lambda s: s.where(Order.id == ident)  # noqa: B023
        assert read(session, statement).id == ident
        assert dict(session.held_locks) == {(Order, (ident,)): ForUpdate}
        session.rollback()


def test_a_lock_that_was_replaced_is_refused(session: LockingSession) -> None:
    locked = with_lock(sa.select(Order), ForUpdate)
    statement = sa.lambda_stmt(lambda: locked.with_for_update(read=True), enable_tracking=False)
    with pytest.raises(LockMisuse, match="with_for_update"):
        session.execute(statement)


def test_a_plain_select_stays_a_lambda(session: LockingSession) -> None:
    statement = sa.lambda_stmt(lambda: sa.select(Order.id).where(Order.id == 1))
    assert session.scalars(statement).all() == [1]
    assert dict(session.held_locks) == {}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("listens", [False, True], ids=["alone", "with a listener"])
def test_a_with_for_update_is_adopted(
    session: LockingSession, read: Callable[..., Any], listens: bool
) -> None:
    if listens:
        sa.event.listen(session, "do_orm_execute", lambda _: None)
    statement = sa.lambda_stmt(lambda: sa.select(Order).where(Order.id == 1).with_for_update())
    order = read(session, statement)
    assert dict(session.held_locks) == {(Order, (1,)): ForUpdate}
    order.total += 1
    session.flush()
