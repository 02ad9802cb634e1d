"""Pending changes: refused on the document that is to be locked, left alone on anything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions, UnsavedChanges
from tests.integration.locking.steps import recorded
from tests.support.models import (
    Account,
    Clause,
    Contract,
    Lease,
    Line,
    Order,
    Voucher,
)

pytestmark = [pytest.mark.quick, pytest.mark.read_committed]

Session = LockingSession
ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
Run = Callable[..., list[Any]]


def header_dirty(session: Session) -> None:
    session.get_one(Order, 1).total = 31


def header_deleted(session: Session) -> None:
    session.delete(session.get_one(Order, 1))


def header_new(session: Session) -> None:
    session.add(Order(id=1, total=0))


def line_new_in_collection(session: Session) -> None:
    order = session.get_one(Order, 1)
    order.lines.append(Line(id=9, name="x", value=1))


def line_new_by_backref(session: Session) -> None:
    session.add(Line(id=9, order=session.get_one(Order, 1), name="x", value=1))


def line_new_by_foreign_key(session: Session) -> None:
    session.add(Line(id=9, order_id=1, name="x", value=1))


def line_dirty(session: Session) -> None:
    session.get_one(Line, 1).value = 11


def line_deleted(session: Session) -> None:
    session.delete(session.get_one(Line, 1))


def line_removed_from_collection(session: Session) -> None:
    order = session.get_one(Order, 1)
    order.lines.remove(order.lines[0])


def line_moved_away_by_foreign_key(session: Session) -> None:
    session.get_one(Line, 1).order_id = 2


def line_moved_away_by_backref(session: Session) -> None:
    session.get_one(Line, 1).order = session.get_one(Order, 2)


def line_moved_here_by_foreign_key(session: Session) -> None:
    session.get_one(Line, 3).order_id = 1


def line_moved_here_by_collection(session: Session) -> None:
    order = session.get_one(Order, 1)
    order.lines.append(session.get_one(Line, 3))


EDITS = [
    header_dirty,
    header_deleted,
    header_new,
    line_new_in_collection,
    line_new_by_backref,
    line_new_by_foreign_key,
    line_dirty,
    line_deleted,
    line_removed_from_collection,
    line_moved_away_by_foreign_key,
    line_moved_away_by_backref,
    line_moved_here_by_foreign_key,
    line_moved_here_by_collection,
]


def make(edit: Callable[[Session], None], session: Session) -> None:
    """Leave it pending, whatever the edit reads."""
    with session.no_autoflush:
        edit(session)


def test_pending_changes_of_the_document_are_refused(
    engine: sa.Engine, session_factory: Callable[[], Session]
) -> None:
    for edit in EDITS:
        with session_factory() as session:
            make(edit, session)
            with (
                recorded(engine) as statements,
                pytest.raises(UnsavedChanges, match="Order 1 FOR UPDATE"),
            ):
                session.get_entity(Order, 1, ForUpdate)
            assert statements == [], edit
            assert session.new or session.dirty or session.deleted, edit  # nothing is lost
            assert not session.held_locks, edit


def test_a_lock_elsewhere_forgets_no_pending_changes(
    session_factory: Callable[[], Session], elsewhere: Run
) -> None:
    elsewhere(sa.insert(Order).values(id=7, total=0, remark=""))
    for edit in EDITS:
        with session_factory() as session:
            make(edit, session)
            before = [*session.new, *session.dirty, *session.deleted]
            session.get_one_entity(Order, 7, ForUpdate)
            assert [*session.new, *session.dirty, *session.deleted] == before, edit
            with pytest.raises(UnsavedChanges):
                session.get_entity(Order, 1, ForUpdate)


def test_a_set_that_returns_the_document_is_refused(
    session_factory: Callable[[], Session],
) -> None:
    for edit in EDITS:
        with session_factory() as session:
            make(edit, session)
            with pytest.raises(UnsavedChanges, match="Order rows FOR UPDATE"):
                session.scalars(session.entity_set(Order, ForUpdate).where(Order.id == 1))


def test_a_change_of_a_listener_in_an_empty_session_is_refused(session: Session) -> None:
    @sa.event.listens_for(session, "do_orm_execute", once=True)
    def change(_: object) -> None:
        session.get_one(Order, 1).total += 1

    with pytest.raises(UnsavedChanges, match="Order rows FOR UPDATE"):
        session.scalars(session.entity_set(Order, ForUpdate).where(Order.id == 1)).all()
    assert not session.held_locks


@pytest.mark.read_committed
def test_a_set_that_was_refused_is_not_held(session: Session) -> None:
    order = session.get_one(Order, 1)
    order.total = 31
    with pytest.raises(UnsavedChanges):
        session.scalars(session.entity_set(Order, ForUpdate))
    assert not session.held_locks
    assert order.total == 31


def test_flushed_changes_are_no_pending_ones(session: Session) -> None:
    order = session.get_one(Order, 1)
    order.total = 31
    session.flush()
    assert session.get_one_entity(Order, 1, ForUpdate) is order
    assert order.total == 31


def test_a_value_that_was_set_to_itself_is_no_change(session: Session) -> None:
    order = session.get_one(Order, 1)
    order.total = 30
    order.lines[0].value = 10
    assert session.get_one_entity(Order, 1, ForUpdate) is order


def test_details_of_other_kinds_are_refused(session: Session) -> None:
    with session.no_autoflush:
        session.get_one(Voucher, (2024, 1)).entries[0].value = 1
        session.get_one(Clause, 1).value = 1
        session.get_one(Account, 1).total = 1
    for entity, ident in ((Voucher, (2024, 1)), (Lease, 1), (Contract, 1), (Account, 1)):
        with pytest.raises(UnsavedChanges):
            session.get_entity(entity, ident, ForUpdate)
