"""get_entities, where some of the documents are held already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import selectinload

from sa_doclock import (
    LockingSession,
    LockOptions,
    LockUpgradeRefused,
    UnsavedChanges,
    WrongIsolation,
)
from tests.integration.locking.steps import finds_held, locks_rows, recorded
from tests.support.models import Contract, Lease, Line, Order, Voucher

pytestmark = pytest.mark.read_committed

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
SnapshotRead = LockOptions.SnapshotRead
Session = LockingSession


def test_where_all_are_held_nothing_is_sent(engine: sa.Engine, session: Session) -> None:
    for held, asked in (
        (ForUpdate, ForUpdate),
        (ForUpdate, SharedRead),
        (ForUpdate, ForUpdate | LockOptions.NoWait),
        (SharedRead, SharedRead),
        (SnapshotRead, SnapshotRead),
    ):
        found = session.get_entities(Order, [1, 2], held)
        with recorded(engine) as statements:
            assert session.get_entities(Order, [2, 1], asked) == found
            assert session.get_one_entity(Order, 2, asked) is found[1]
        assert statements == [], (held, asked)
        assert set(session.held_locks.values()) == {held}
        session.rollback()


@pytest.mark.not_databases("sqlite")  # the lock is not in a SELECT
def test_only_the_others_are_locked(engine: sa.Engine, session: Session) -> None:
    second = session.get_one_entity(Order, 2, ForUpdate)
    found = []
    parameters: list[Any] = []

    def note(_: object, __: object, text: str, values: Any, *___: object) -> None:
        if locks_rows(text):
            parameters.extend(values.values() if isinstance(values, dict) else values)

    sa.event.listen(engine, "before_cursor_execute", note)
    found = session.get_entities(Order, [2, 1], ForUpdate)
    sa.event.remove(engine, "before_cursor_execute", note)
    assert parameters == [1]
    assert found[1] is second
    assert [order.id for order in found] == [1, 2]


def test_the_others_are_locked_as_ever(session: Session, other: Session) -> None:
    session.get_one_entity(Order, 2, ForUpdate)
    session.get_entities(Order, [1, 2], ForUpdate)
    assert dict(session.held_locks) == {(Order, (2,)): ForUpdate, (Order, (1,)): ForUpdate}
    assert finds_held(Order, 1)(other)


def test_changes_of_one_that_is_held_stay(session: Session) -> None:
    second = session.get_one_entity(Order, 2, ForUpdate)
    second.total = 6
    found = session.get_entities(Order, [1, 2], ForUpdate, options=[selectinload(Order.lines)])
    assert found[1] is second
    assert second.total == 6
    assert second in session.dirty


def test_a_subclass_is_the_same_document(engine: sa.Engine, session: Session) -> None:
    lease = session.get_one_entity(Lease, 1, ForUpdate)
    with recorded(engine) as statements:
        assert session.get_entities(Contract, [1], ForUpdate) == [lease]
    assert statements == []


@pytest.mark.parametrize("held", [SharedRead, SnapshotRead])
def test_an_upgrade_is_refused_before_anything_is_sent(
    engine: sa.Engine, session: Session, held: LockOptions
) -> None:
    session.get_one_entity(Order, 2, held)
    with recorded(engine) as statements, pytest.raises(LockUpgradeRefused, match="Order rows"):
        session.get_entities(Order, [1, 2], ForUpdate)
    assert statements == []
    assert session.get_one_entity(Order, 2).total == 5  # the transaction lives on


def test_a_snapshot_has_no_other_locks(session: Session) -> None:
    session.get_entities(Order, [1], SnapshotRead)
    assert len(session.get_entities(Order, [1, 2], SnapshotRead)) == 2
    with pytest.raises(WrongIsolation, match=r"^Voucher rows FOR UPDATE on .*read-only"):
        session.get_entities(Voucher, [(2024, 1), (2024, 2)], ForUpdate)


def change_header(session: Session) -> Any:
    order = session.get_one(Order, 2)
    order.total = 6
    return order


def change_line(session: Session) -> Any:
    line = session.get_one(Line, 3)
    line.value = 6
    return line


def add_line(session: Session) -> Any:
    line = Line(id=9, order_id=2, name="x", value=1)
    session.add(line)
    return line


@pytest.mark.parametrize("change", [change_header, change_line, add_line])
def test_pending_changes_of_any_are_refused_before_anything_is_sent(
    engine: sa.Engine, session: Session, change: Callable[[Session], Any]
) -> None:
    changed = change(session)
    with recorded(engine) as statements, pytest.raises(UnsavedChanges, match="Order"):
        session.get_entities(Order, [1, 2], ForUpdate)
    assert statements == []
    assert changed in (*session.new, *session.dirty)
    assert not session.held_locks


def test_pending_changes_of_another_are_left_alone(session: Session) -> None:
    changed = change_header(session)
    assert [order.id for order in session.get_entities(Order, [1], ForUpdate)] == [1]
    assert changed in session.dirty
    assert changed.total == 6
