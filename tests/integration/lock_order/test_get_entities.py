"""get_entities: each document once, in ascending key order, those that there are not left out."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import selectinload

from sa_doclock import LockingSession, LockOptions
from tests.integration.locking.kinds import KINDS, Kind
from tests.integration.locking.steps import finds_held, recorded, seen
from tests.support.models import Contract, Fault, Lease, Order, Ticket, Voucher

pytestmark = pytest.mark.read_committed

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
PLAIN = (LockOptions.None_, LockOptions.NoLock)
LOCKS = (ForUpdate, SharedRead, LockOptions.SnapshotRead)
ALL = (*PLAIN, *LOCKS)
Session = LockingSession


def idents(found: list[Any]) -> list[Any]:
    return [sa.inspect(one).identity for one in found]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_they_come_in_ascending_order_of_their_keys(session: Session, kind: Kind) -> None:
    entity = Contract if kind.entity is Lease else Ticket if kind.entity is Fault else kind.entity
    expected = [kind.ident, kind.other_ident]
    expected = [one if isinstance(one, tuple) else (one,) for one in expected]
    for lock in ALL:
        found = session.get_entities(entity, [kind.other_ident, kind.ident], lock)
        assert idents(found) == expected, lock
        assert [one.total for one in found] == [30, 5], lock
        assert list(session.held_locks) == (
            [] if lock in PLAIN else [(entity, i) for i in expected]
        )
        session.rollback()


def test_every_one_of_them_is_locked(session: Session, other: Session) -> None:
    for entity, keys in ((Order, [2, 1]), (Contract, [2, 1]), (Voucher, [(2024, 2), (2024, 1)])):
        session.get_entities(entity, keys, ForUpdate)
        for key in keys:
            assert finds_held(entity, key)(other), (entity, key)
        session.rollback()


def test_each_comes_once(session: Session) -> None:
    for lock in ALL:
        assert idents(session.get_entities(Order, [2, 1, 2, (1,), {"id": 2}], lock)) == [(1,), (2,)]
        session.rollback()


def test_many_come_in_order(session: Session, twenty: range) -> None:
    keys = sorted(twenty, key=lambda key: key * 7 % 20)
    for lock in ALL:
        assert [one.id for one in session.get_entities(Order, keys, lock)] == list(twenty)
        session.rollback()


def test_composite_keys_are_ordered_by_their_first_column_first(
    session: Session, twenty: range
) -> None:
    keys = [(2025, 3), (2024, 2), (2025, twenty[-1]), (2024, 1)]
    for lock in ALL:
        found = session.get_entities(Voucher, keys, lock)
        assert idents(found) == [(2024, 1), (2024, 2), (2025, 3), (2025, 20)], lock
        session.rollback()


def test_those_that_there_are_not_are_left_out(session: Session) -> None:
    for lock in ALL:
        assert idents(session.get_entities(Order, [99, 2, 0, 1], lock)) == [(1,), (2,)]
        assert (Order, (99,)) not in session.held_locks
        session.rollback()
        assert session.get_entities(Order, [98, 99], lock) == []
        assert not session.held_locks
        session.rollback()


def test_those_of_another_class_are_left_out(session: Session) -> None:
    for entity in (Lease, Fault):
        for lock in ALL:
            found = session.get_entities(entity, [2, 1], lock)
            assert idents(found) == [(1,)], (entity, lock)
            session.rollback()


def test_of_no_keys_nothing_is_asked(engine: sa.Engine, session: Session) -> None:
    with recorded(engine) as statements:
        for lock in ALL:
            assert session.get_entities(Order, [], lock) == []
            assert session.get_entities(Order, iter(()), lock) == []
    assert statements == []
    assert not session.in_transaction()


def test_any_collection_of_keys_will_do(session: Session) -> None:
    for keys in ((key for key in (2, 1)), {2, 1}, (2, 1), {2: "b", 1: "a"}.keys()):
        assert idents(session.get_entities(Order, keys, ForUpdate)) == [(1,), (2,)]
        session.rollback()


def test_a_key_may_be_given_in_every_way_that_get_entity_knows(session: Session) -> None:
    keys: list[Any] = [{"number": 2, "year": 2024}, [2024, 1], (2024, 2)]
    found = session.get_entities(Voucher, keys, ForUpdate)
    assert idents(found) == [(2024, 1), (2024, 2)]
    session.rollback()
    rows = session.execute(sa.select(Voucher.year, Voucher.number)).all()
    assert idents(session.get_entities(Voucher, rows, ForUpdate)) == [(2024, 1), (2024, 2)]


def test_no_lock_is_no_lock(session: Session, other: Session) -> None:
    for lock in PLAIN:
        session.get_entities(Order, [1, 2], lock)
        assert not finds_held(Order, 1)(other)


def test_a_plain_read_gives_the_objects_that_the_session_knows(session: Session) -> None:
    known = session.get_one(Order, 2)
    known.total = 6
    with session.no_autoflush:
        found = session.get_entities(Order, [2, 1])
    assert found[1] is known
    assert known.total == 6


def test_options_are_honoured(engine: sa.Engine, session: Session) -> None:
    for lock in ALL:
        found = session.get_entities(Order, [2, 1], lock, options=[selectinload(Order.lines)])
        with recorded(engine) as statements:
            assert list(map(seen, found)) == [(30, [10, 20]), (5, [5])], lock
        assert statements == []
        session.close()


def test_options_are_honoured_for_those_that_are_held(engine: sa.Engine, session: Session) -> None:
    kept = session.get_entities(Order, [2], ForUpdate)
    found = session.get_entities(Order, [2, 1], ForUpdate, options=[selectinload(Order.lines)])
    assert found[1] is kept[0]
    with recorded(engine) as statements:
        assert list(map(seen, found)) == [(30, [10, 20]), (5, [5])]
    assert statements == []


def test_one_statement_locks_them_all(engine: sa.Engine, session: Session, twenty: range) -> None:
    session.get_entities(Order, [1], ForUpdate)  # asks once how the table is stored
    session.rollback()
    with recorded(engine) as statements:
        session.get_entities(Order, twenty, ForUpdate)
    assert len([text for text in statements if text.startswith("SELECT")]) == 1
