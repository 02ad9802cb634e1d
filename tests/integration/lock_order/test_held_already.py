"""get_entities, if some of the documents are held already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import selectinload

from sa_doclock import (
    LockingSession,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    LockUpgradeRefused,
    UnsavedChanges,
    WrongIsolation,
)
from tests.integration.locking.expectations import READER_AFTER_WRITER, WAITS, on
from tests.integration.locking.steps import finds_held, locks_rows, recorded
from tests.support.models import Contract, Lease, Line, Order, Voucher

ForUpdate, SharedRead, SnapshotRead, SkipLocked = (
    LockOptions.ForUpdate,
    LockOptions.SharedRead,
    LockOptions.SnapshotRead,
    LockOptions.SkipLocked,
)
Session = LockingSession


@pytest.mark.read_committed
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


@pytest.mark.read_committed
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


@pytest.mark.read_committed
def test_the_others_are_locked_as_ever(session: Session, other: Session) -> None:
    session.get_one_entity(Order, 2, ForUpdate)
    session.get_entities(Order, [1, 2], ForUpdate)
    assert dict(session.held_locks) == {(Order, (2,)): ForUpdate, (Order, (1,)): ForUpdate}
    assert finds_held(Order, 1)(other)


@pytest.mark.read_committed
def test_changes_of_one_that_is_held_stay(session: Session) -> None:
    second = session.get_one_entity(Order, 2, ForUpdate)
    second.total = 6
    found = session.get_entities(Order, [1, 2], ForUpdate, options=[selectinload(Order.lines)])
    assert found[1] is second
    assert second.total == 6
    assert second in session.dirty


@pytest.mark.read_committed
def test_a_subclass_is_the_same_document(engine: sa.Engine, session: Session) -> None:
    lease = session.get_one_entity(Lease, 1, ForUpdate)
    with recorded(engine) as statements:
        assert session.get_entities(Contract, [1], ForUpdate) == [lease]
    assert statements == []


@pytest.mark.read_committed
@pytest.mark.parametrize("held", [SharedRead, SnapshotRead])
def test_an_upgrade_is_refused_before_anything_is_sent(
    engine: sa.Engine, session: Session, held: LockOptions
) -> None:
    session.get_one_entity(Order, 2, held)
    with recorded(engine) as statements, pytest.raises(LockUpgradeRefused, match="Order rows"):
        session.get_entities(Order, [1, 2], ForUpdate)
    assert statements == []
    assert session.get_one_entity(Order, 2).total == 5  # the transaction continues


@pytest.mark.read_committed
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


@pytest.mark.read_committed
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


@pytest.mark.read_committed
def test_pending_changes_of_another_are_left_alone(session: Session) -> None:
    changed = change_header(session)
    assert [order.id for order in session.get_entities(Order, [1], ForUpdate)] == [1]
    assert changed in session.dirty
    assert changed.total == 6


# --------------------------------------------------------------------------------------------------
# get_entities() and rows that others hold: it skips them, fails at once, or fails after a timeout.

NoWait = LockOptions.NoWait


@pytest.mark.not_databases("sqlite")
def test_what_others_hold_is_left_out(session: Session, other: Session) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    found = session.get_entities(Order, [2, 1, 99], ForUpdate | SkipLocked)
    assert [order.id for order in found] == [2]
    assert list(session.held_locks) == [(Order, (2,))]
    other.rollback()
    assert finds_held(Order, 2)(other)
    assert not finds_held(Order, 1)(other)


@pytest.mark.not_databases("sqlite")
def test_what_others_hold_of_other_mappings_is_left_out(session: Session, other: Session) -> None:
    other.get_one_entity(Lease, 1, ForUpdate)
    other.get_one_entity(Voucher, (2024, 1), ForUpdate)
    found = session.get_entities(Contract, [2, 1], ForUpdate | SkipLocked)
    assert [contract.id for contract in found] == [2]
    assert session.get_entities(Lease, [1], ForUpdate | SkipLocked) == []
    keys = [(2024, 1), (2024, 2)]
    assert [one.number for one in session.get_entities(Voucher, keys, ForUpdate | SkipLocked)] == [
        2
    ]
    assert len(session.held_locks) == 2


@pytest.mark.not_databases("sqlite")
def test_an_object_that_was_left_out_stays_in_the_session(session: Session, other: Session) -> None:
    known = session.get_one(Order, 1)
    session.commit()
    other.get_one_entity(Order, 1, ForUpdate)
    assert session.get_entities(Order, [1], ForUpdate | SkipLocked) == []
    assert known in session
    assert known.total == 30


@pytest.mark.not_databases("sqlite")
def test_what_is_held_here_is_not_left_out(session: Session, other: Session) -> None:
    first = session.get_one_entity(Order, 1, ForUpdate)
    other.get_one_entity(Order, 2, ForUpdate)
    assert session.get_entities(Order, [1, 2], ForUpdate | SkipLocked) == [first]


@pytest.mark.databases("sqlite")
def test_sqlite_has_nothing_to_skip(session: Session) -> None:
    with pytest.raises(LockNotSupported, match=r"Order rows .*SQLite locks the file, not rows"):
        session.get_entities(Order, [1, 2], ForUpdate | SkipLocked)
    assert not session.in_transaction()


@pytest.mark.parametrize("how", ["NoWait", "zero", "a while"])
def test_one_that_another_holds_is_reason_enough_to_fail(
    session: Session, other: Session, how: str
) -> None:
    other.get_one_entity(Order, 2, ForUpdate)
    lock = ForUpdate | NoWait if how == "NoWait" else ForUpdate
    seconds = {"NoWait": None, "zero": 0, "a while": 0.3}[how]
    with pytest.raises(LockNotAvailable, match=r"^Order rows FOR UPDATE") as caught:
        session.get_entities(Order, [1, 2], lock, lock_timeout=seconds)
    assert caught.value.entity is Order
    assert caught.value.retryable
    assert not session.in_transaction()  # it had opened the transaction
    assert not session.held_locks
    other.rollback()
    assert not finds_held(Order, 1)(other)
    assert len(session.get_entities(Order, [1, 2], lock, lock_timeout=seconds)) == 2


def test_of_a_single_one_the_error_names_its_key_as_it_was_given(
    session: Session, other: Session
) -> None:
    other.get_one_entity(Order, 2, ForUpdate)
    with pytest.raises(LockNotAvailable, match=r"^Order 2 FOR UPDATE") as caught:
        session.get_entities(Order, [2], ForUpdate | NoWait)
    assert caught.value.ident == 2
    assert caught.value.lock == ForUpdate | NoWait


@on(READER_AFTER_WRITER, WAITS)
def test_readers_are_side_by_side_and_a_writer_is_not(session: Session, other: Session) -> None:
    assert len(session.get_entities(Order, [1, 2], SharedRead | NoWait)) == 2
    assert len(other.get_entities(Order, [2, 1], SharedRead | NoWait)) == 2
    assert set(other.held_locks.values()) == {SharedRead}
    other.rollback()
    with pytest.raises(LockNotAvailable, match=r"^Order rows FOR UPDATE NOWAIT on "):
        other.get_entities(Order, [2, 1], ForUpdate | NoWait)
    session.rollback()
    session.get_one_entity(Order, 2, ForUpdate)
    with pytest.raises(LockNotAvailable, match=r"^Order rows SHARED READ NOWAIT on "):
        other.get_entities(Order, [2, 1], SharedRead | NoWait)
    assert [one.id for one in other.get_entities(Order, [2, 1], SharedRead | SkipLocked)] == [1]
