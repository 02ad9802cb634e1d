"""A listener of the program reads or changes a document during the lock call.

Before the grant, its reads are discarded and its changes refused: both may be older than the lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm.exc import StaleDataError
from sqlalchemy.orm.util import identity_key

from sa_doclock import LockingSession, LockOptions, UnsavedChanges
from sa_doclock.dialects import strategy_for
from sa_doclock.dialects.base import MaxParameters
from tests.integration.locking.steps import seen
from tests.support.models import Account, Customer, Line, Order

pytestmark = [pytest.mark.own_logic, pytest.mark.each_value]

ForUpdate = LockOptions.ForUpdate
Elsewhere = Callable[..., list[Any]]

WAYS: dict[str, Callable[[LockingSession], Order]] = {
    "get_entity": lambda session: session.get_one_entity(Order, 1, ForUpdate),
    "in time": lambda session: session.get_one_entity(Order, 1, ForUpdate, lock_timeout=9),
    "get_entities": lambda session: session.get_entities(Order, [1, 2], ForUpdate)[0],
    "lock": lambda session: session.lock(session.identity_map[identity_key(Order, 1)]),
    "entity_set": lambda session: session.scalars(
        session.entity_set(Order, ForUpdate).where(Order.id == 1)
    ).one(),
}

_ADD_TEN = (
    sa.update(Order).where(Order.id == 1).values(total=Order.total + 10),
    sa.update(Line).where(Line.id == 1).values(value=Line.value + 10),
)


def _change_header(order: Order) -> None:
    order.total += 1


def _change_line(order: Order) -> None:
    order.lines[0].value += 1


def _add_line(order: Order) -> None:
    order.lines.append(Line(id=77, name="new", value=1))


CHANGES = {"header": _change_header, "line": _change_line, "new line": _add_line}


def _first(session: LockingSession, act: Callable[[Order], object]) -> Order:
    """Load order 1 with its lines, and call this with it at the next statement."""
    order = session.get_one(Order, 1)
    assert seen(order) == (30, [10, 20])
    done: list[bool] = []

    @event.listens_for(session, "do_orm_execute")
    def listen(state: Any) -> None:
        if not (done or state.is_column_load or state.is_relationship_load):
            done.append(True)
            act(order)

    return order


@pytest.mark.not_databases("sqlite", "mssql")  # there the transaction has the lock already
@pytest.mark.read_committed
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_a_listener_reads_before_the_lock_is_read_again(
    session: LockingSession, elsewhere: Elsewhere, way: Callable[[LockingSession], Order]
) -> None:
    def read(order: Order) -> None:
        assert seen(order) == (30, [10, 20])
        elsewhere(*_ADD_TEN)

    order = _first(session, read)
    assert way(session) is order
    assert seen(order) == (40, [20, 20])


@pytest.mark.not_databases("sqlite", "mssql")
@pytest.mark.read_committed
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_a_listener_changes_before_the_lock_is_refused(
    session: LockingSession,
    elsewhere: Elsewhere,
    way: Callable[[LockingSession], Order],
    change: Callable[[Order], None],
) -> None:
    def change_both(order: Order) -> None:
        change(order)
        elsewhere(*_ADD_TEN)

    _first(session, change_both)
    with pytest.raises(UnsavedChanges, match=r"Order (1|rows|\[1, 2\]) FOR UPDATE"):
        way(session)
    session.rollback()
    assert seen(session.get_one(Order, 1)) == (40, [20, 20])


def _set_total(_session: LockingSession, order: Order, _: Line) -> None:
    order.total = 30 + 1


def _set_value(_session: LockingSession, _: Order, line: Line) -> None:
    line.value = [10, 20][0] + 1


def _delete_line(session: LockingSession, _: Order, line: Line) -> None:
    session.delete(line)


@pytest.mark.not_databases("sqlite", "mssql")
@pytest.mark.read_committed
@pytest.mark.parametrize("name", ["expire", "before_execute", "before_cursor_execute"])
@pytest.mark.parametrize("change", [_set_total, _set_value, _delete_line])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_another_listener_changes_before_the_lock_is_refused(
    session: LockingSession,
    elsewhere: Elsewhere,
    way: Callable[[LockingSession], Order],
    change: Callable[[LockingSession, Order, Line], None],
    name: str,
) -> None:
    order = session.get_one(Order, 1)
    assert seen(order) == (30, [10, 20])
    line, done = order.lines[0], list[bool]()

    def listen(*_: object) -> None:
        if not done:
            done.append(True)
            change(session, order, line)
            elsewhere(*_ADD_TEN)

    target: Any = Line if name == "expire" else session.get_bind()
    event.listen(target, name, listen)
    try:
        with pytest.raises(UnsavedChanges):
            way(session)
    finally:
        event.remove(target, name, listen)
    session.rollback()
    assert seen(session.get_one(Order, 1)) == (40, [20, 20])


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_changes_as_the_transaction_begins_is_refused(
    session: LockingSession,
    way: Callable[[LockingSession], Order],
    change: Callable[[Order], None],
) -> None:
    session.expire_on_commit = False
    order = session.get_one(Order, 1)
    assert seen(order) == (30, [10, 20])
    session.commit()

    @event.listens_for(session, "after_begin", once=True)
    def begin(*_: object) -> None:
        change(order)

    with pytest.raises(UnsavedChanges):
        way(session)
    assert not session.held_locks
    assert not session.in_transaction()


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_changes_as_it_is_expired_is_refused(
    session: LockingSession,
    way: Callable[[LockingSession], Order],
    change: Callable[[Order], None],
) -> None:
    session.expire_on_commit = False
    order = session.get_one(Order, 1)
    assert seen(order) == (30, [10, 20])
    session.commit()
    done: list[bool] = []

    def expire(found: Order, _: object) -> None:
        if found is order and not done:
            done.append(True)
            change(order)

    event.listen(Order, "expire", expire)
    try:
        with pytest.raises(UnsavedChanges):
            way(session)
    finally:
        event.remove(Order, "expire", expire)
    assert done
    assert not session.held_locks


def test_what_a_listener_changes_under_the_lock_is_kept(
    engine: sa.Engine, session: LockingSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategy_for(engine).statements, "max_parameters", MaxParameters(1))

    done: list[bool] = []

    @event.listens_for(session, "do_orm_execute")
    def change_the_first(_: object) -> None:
        order = session.identity_map.get(identity_key(Order, 1))
        if order is not None and not done:
            done.append(True)
            order.total += 1  # it is locked; the statement is for order 2

    orders = session.get_entities(Order, [1, 2], ForUpdate)
    session.save_changes()
    totals = session.scalars(sa.select(Order.total).order_by(Order.id)).all()
    assert totals == [order.total for order in orders] == [31, 5]


# --------------------------------------------------------------------------------------------------
# A program adds another session's objects under the lock of their document.


def _detached(entity: Any, session: LockingSession) -> Any:
    """Return the object 1 of this class, as read by another session."""
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
