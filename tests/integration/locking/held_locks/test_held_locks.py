"""held_locks: what this transaction holds, and when it forgets."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions
from tests.integration.locking.kinds import KINDS
from tests.integration.locking.steps import finds_held, locks_rows, recorded
from tests.support.models import ColdStore, Contract, Lease, Line, Order, Ticket, Voucher

pytestmark = [pytest.mark.quick, pytest.mark.read_committed]

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
NoWait, SnapshotRead = LockOptions.NoWait, LockOptions.SnapshotRead
Session = LockingSession
ROOTS = {"joined": Contract, "single-table": Ticket, "concrete": ColdStore}


def test_the_key_is_the_root_and_the_identity(session: Session) -> None:
    for kind in KINDS:
        session.get_one_entity(kind.entity, kind.ident, ForUpdate)
        identity = kind.ident if isinstance(kind.ident, tuple) else (kind.ident,)
        root = ROOTS.get(kind.name, kind.entity)
        assert dict(session.held_locks) == {(root, identity): ForUpdate}
        session.rollback()


def test_a_key_is_the_same_however_it_is_given(session: Session) -> None:
    idents: list[Any] = [(2024, 1), [2024, 1], {"number": 1, "year": 2024}]
    for ident in idents:
        session.get_one_entity(Voucher, ident, ForUpdate)
        assert list(session.held_locks) == [(Voucher, (2024, 1))]
        session.rollback()


def test_the_value_is_the_base_lock(session: Session) -> None:
    for base in (ForUpdate, SharedRead, SnapshotRead):
        session.get_one_entity(Order, 1, base)
        assert dict(session.held_locks) == {(Order, (1,)): base}
        session.rollback()
    for base in (ForUpdate, SharedRead):
        session.get_one_entity(Order, 1, base | NoWait)
        assert dict(session.held_locks) == {(Order, (1,)): base}
        session.rollback()


def test_a_plain_read_is_not_in_it(session: Session) -> None:
    for lock in (LockOptions.None_, LockOptions.NoLock):
        session.get_one_entity(Order, 1, lock)
        assert not session.held_locks


def test_rows_of_a_set_are_in_it(session: Session) -> None:
    session.scalars(session.entity_set(Contract, ForUpdate)).all()
    assert dict(session.held_locks) == {(Contract, (1,)): ForUpdate, (Contract, (2,)): ForUpdate}
    session.rollback()
    query = session.entity_set(Order, SharedRead).join(Order.lines).where(Line.value > 5)
    session.scalars(query).unique().all()
    assert dict(session.held_locks) == {(Order, (1,)): SharedRead}


def test_it_is_read_only(session: Session) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    with pytest.raises(TypeError):
        session.held_locks[Order, (2,)] = ForUpdate  # type: ignore[index]


def test_the_end_empties_it(session: Session) -> None:
    for end in (session.commit, session.rollback, session.close, session.reset):
        session.get_one_entity(Order, 1, ForUpdate)
        assert session.held_locks
        end()
        assert not session.held_locks, end


def test_a_lock_is_the_transactions_not_the_objects(
    engine: sa.Engine, session: Session, other: Session
) -> None:
    session.expunge(session.get_one_entity(Order, 1, ForUpdate))
    session.expunge_all()
    assert list(session.held_locks) == [(Order, (1,))]
    assert finds_held()(other)
    with recorded(engine) as statements:
        assert session.get_one_entity(Order, 1, ForUpdate).total == 30
    assert not [text for text in statements if locks_rows(text) or "BEGIN" in text]


def test_the_rollback_of_a_savepoint_forgets_what_was_locked_in_it(session: Session) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    with session.begin_nested() as savepoint:
        session.get_one_entity(Order, 2, ForUpdate)
        savepoint.rollback()
    assert list(session.held_locks) == [(Order, (1,))]


@pytest.mark.databases("postgresql")  # InnoDB keeps the row locked
def test_what_it_forgets_may_change_on_postgresql(session: Session, other: Session) -> None:
    first = session.get_one_entity(Order, 1, ForUpdate)
    with session.begin_nested() as savepoint:
        second = session.get_one_entity(Order, 2, ForUpdate)
        savepoint.rollback()
    assert second.total == 5
    other.get_one_entity(Order, 2, ForUpdate).total = 6
    other.save_changes()
    assert session.get_one_entity(Order, 2, ForUpdate).total == 6
    assert finds_held(Order, 2)(other)
    assert first in session


@pytest.mark.databases("mysql", "mariadb")
def test_what_it_forgets_is_still_locked_by_innodb(session: Session, other: Session) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    with session.begin_nested() as savepoint:
        session.get_one_entity(Order, 2, ForUpdate)
        savepoint.rollback()
    assert finds_held(Order, 2)(other)
    session.rollback()
    assert not finds_held(Order, 2)(other)


def test_what_it_forgets_is_locked_anew(session: Session, other: Session) -> None:
    session.begin()
    session.connection()
    with session.begin_nested() as savepoint:
        session.get_one_entity(Order, 1, ForUpdate)
        savepoint.rollback()
    assert not session.held_locks
    session.get_one_entity(Order, 1, ForUpdate)
    assert finds_held()(other)


def test_what_was_locked_in_a_savepoint_is_fresh_after_its_rollback(session: Session) -> None:
    session.begin()
    with session.begin_nested() as savepoint:
        session.get_one_entity(Order, 1, ForUpdate).total = 31
        session.flush()
        savepoint.rollback()
    order = session.get_one_entity(Order, 1, ForUpdate)
    assert order.total == 30
    session.commit()


def test_the_release_of_a_savepoint_keeps_it(session: Session, other: Session) -> None:
    with session.begin():
        with session.begin_nested():
            session.get_one_entity(Order, 1, ForUpdate)
        assert list(session.held_locks) == [(Order, (1,))]
        assert finds_held()(other)


def test_savepoints_in_savepoints(session: Session) -> None:
    with session.begin():
        with session.begin_nested() as outer:
            session.get_one_entity(Order, 1, ForUpdate)
            with session.begin_nested():
                session.get_one_entity(Order, 2, ForUpdate)
            assert len(session.held_locks) == 2
            outer.rollback()
        assert not session.held_locks


def test_a_lock_taken_before_and_again_in_a_savepoint_stays(session: Session) -> None:
    session.get_one_entity(Lease, 1, ForUpdate)
    with session.begin_nested() as savepoint:
        session.get_one_entity(Contract, 1, ForUpdate)
        savepoint.rollback()
    assert list(session.held_locks) == [(Contract, (1,))]
