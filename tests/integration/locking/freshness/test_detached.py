"""Objects of another session that a program adds under the lock of their document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm.exc import StaleDataError

from sa_doclock import LockingSession, LockOptions
from tests.support.models import Account, Customer, Line, Order

ForUpdate = LockOptions.ForUpdate
Elsewhere = Callable[..., list[Any]]


def _detached(entity: Any, session: LockingSession) -> Any:
    """Return the object 1 of this class, as another session has read it."""
    found = session.get_one(entity, 1)
    session.expunge_all()
    session.rollback()
    return found


def test_a_line_that_is_added_under_the_lock_is_read_again(
    session: LockingSession, other: LockingSession, elsewhere: Elsewhere
) -> None:
    line = _detached(Line, other)
    elsewhere(sa.update(Line).where(Line.id == 1).values(value=15))
    session.get_one_entity(Order, 1, ForUpdate)
    session.add(line)
    line.value += 1
    session.save_changes()
    assert elsewhere(sa.select(Line.value).where(Line.id == 1)) == [(16,)]


def test_a_header_that_is_added_under_the_lock_is_read_again(
    session: LockingSession, other: LockingSession, elsewhere: Elsewhere
) -> None:
    order = _detached(Order, other)
    elsewhere(sa.update(Order).where(Order.id == 1).values(total=100))
    session.scalars(sa.select(Order.id).where(Order.id == 1).with_for_update()).all()
    session.add(order)
    assert order.total == 100


def test_its_pending_changes_stay(session: LockingSession, other: LockingSession) -> None:
    with other:
        order = other.get_one(Order, 1)
        order.lines[0].name, new = "changed", Line(id=77, name="new", value=1)
        order.lines.append(new)
        other.expunge_all()
    session.scalars(sa.select(Order.id).where(Order.id == 1).with_for_update()).all()
    session.add(order)
    assert (order.lines[0].name, order.lines[0].value, new in session) == ("changed", 10, True)


@pytest.mark.parametrize("lock", [True, False])
def test_nothing_else_is_read_again(
    session: LockingSession, other: LockingSession, lock: bool
) -> None:
    added = _detached(Customer if lock else Line, other)
    if lock:
        session.get_one_entity(Order, 1, ForUpdate)
    session.add(added)
    statements: list[str] = []
    event.listen(session, "do_orm_execute", lambda state: statements.append(str(state.statement)))
    assert added.name
    assert not statements


@pytest.mark.parametrize("deleted", [True, False])
def test_its_version_is_that_of_which_it_was_changed_or_is_deleted(
    session: LockingSession, other: LockingSession, elsewhere: Elsewhere, deleted: bool
) -> None:
    account = _detached(Account, other)
    elsewhere(
        sa.update(Account).where(Account.id == 1).values(total=5, version=Account.version + 1)
    )
    session.scalars(sa.select(Account.id).where(Account.id == 1).with_for_update()).all()
    if deleted:
        session.delete(account)
    else:
        account.total = 77
        session.add(account)
    with pytest.raises(StaleDataError):
        session.save_changes()
    session.rollback()
    assert elsewhere(sa.select(Account.total).where(Account.id == 1)) == [(5,)]
