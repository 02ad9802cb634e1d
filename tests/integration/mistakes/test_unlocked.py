"""Writing without the lock, or under the lock of something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from sa_doclock import LockingSession, LockOptions, UnlockedWrite
from tests.integration.mistakes.models import ORDER_1, Line, Order

ForUpdate = LockOptions.ForUpdate
Meanwhile = Callable[[Callable[[Session], object]], None]
Stored = Callable[[int], tuple[int, list[int]]]


def add_ten(session: Session) -> None:
    """Add ten to the first line of order 1, and total it again."""
    order = session.get_one(Order, 1)
    order.lines[0].value += 10
    order.total = sum(line.value for line in order.lines)


def test_the_lock_is_forgotten(
    plain: Session, locking: LockingSession, meanwhile: Meanwhile, stored: Stored
) -> None:
    order = plain.get_one(Order, 1)
    total = order.total
    plain.commit()
    meanwhile(add_ten)
    order.total = total + 1
    plain.commit()
    assert stored(1) == (31, [20, 20])  # ten are lost

    mine = locking.get_one(Order, 1)
    mine.total += 1
    with pytest.raises(UnlockedWrite, match="Order 1 would be changed in 'total'") as caught:
        locking.commit()
    assert (caught.value.entity, caught.value.ident) == (Order, 1)
    locking.rollback()
    assert stored(1) == (31, [20, 20])


def test_a_detail_is_locked_in_place_of_its_header(
    plain: Session, locking: LockingSession, meanwhile: Meanwhile, stored: Stored
) -> None:
    plain.get_one(Line, 2)
    total = plain.get_one(Order, 1).total
    plain.commit()

    def change_line_1(session: Session) -> None:
        session.get_one(Line, 1, with_for_update=True).value += 10
        session.get_one(Order, 1).total += 10

    meanwhile(change_line_1)
    plain.get_one(Line, 2, with_for_update=True).value += 1
    plain.get_one(Order, 1).total = total + 1
    plain.commit()
    assert stored(1) == (31, [20, 21])

    line = locking.get_one_entity(Line, 2, ForUpdate)
    line.value += 1
    with pytest.raises(UnlockedWrite, match=r"session.get_entity\(Order, 1, LockOptions.ForUpdate"):
        locking.flush()


BULK: list[Callable[[], sa.Executable]] = [
    lambda: sa.update(Line).where(Line.value == 10).values(value=11),
    lambda: sa.delete(Line).where(Line.value == 10),
    lambda: sa.insert(Line).values(id=9, order_id=1, value=1),
]


@pytest.mark.parametrize("made", BULK, ids=["update", "delete", "insert"])
def test_a_bulk_statement_goes_past_the_lock(
    plain: Session,
    locking: LockingSession,
    stored: Stored,
    made: Callable[[], Any],
    session_factory: Callable[[], LockingSession],
) -> None:
    with pytest.raises(UnlockedWrite, match="Line rows would be") as caught:
        locking.execute(made())
    assert (caught.value.entity, caught.value.ident) == (Order, 1)
    assert stored(1) == ORDER_1
    locking.rollback()

    plain.execute(made())
    plain.commit()
    total, values = stored(1)
    assert total != sum(values)
    with session_factory() as holder, holder.locked(Order, 1) as order:  # and so it goes through
        holder.execute(sa.delete(Line).where(Line.order_id == 1, Line.value < 20))
        holder.expire(order)
        order.total = sum(line.value for line in order.lines)
    assert stored(1) == (20, [20])


def test_a_line_moves_to_an_order_that_is_not_locked(
    plain: Session, locking: LockingSession, stored: Stored
) -> None:
    def move(session: Session) -> None:
        line, order = session.get_one(Line, 1), session.get_one(Order, 1)
        line.order = session.get_one(Order, 2)
        order.total = 20

    plain.get_one(Order, 1, with_for_update=True)
    move(plain)
    plain.commit()
    assert stored(2) == (5, [10, 5])  # the total is wrong
    with Session(plain.get_bind()) as other:  # and back
        other.get_one(Line, 1).order_id = 1
        other.commit()

    kept = locking.get_one_entity(Order, 1, ForUpdate)
    move(locking)
    with pytest.raises(UnlockedWrite) as caught:
        locking.flush()
    assert caught.value.ident == 2
    locking.rollback()
    assert kept is locking.get_one_entity(Order, 1, ForUpdate)
    assert stored(2) == (5, [5])


def test_a_savepoint_takes_the_lock_along(
    plain: Session, locking: LockingSession, session_factory: Callable[[], LockingSession]
) -> None:
    locking.connection()
    savepoint = locking.begin_nested()
    order = locking.get_one_entity(Order, 1, ForUpdate)
    savepoint.rollback()
    order.total += 1
    with pytest.raises(UnlockedWrite):
        locking.flush()
    locking.refresh(order)
    assert locking.get_one_entity(Order, 1, ForUpdate) is order
    order.total += 1
    locking.flush()
    locking.rollback()

    if plain.get_bind().dialect.name == "postgresql":  # where the lock is really gone
        plain.connection()
        savepoint = plain.begin_nested()
        kept = plain.get_one(Order, 1, with_for_update=True)
        savepoint.rollback()
        with session_factory() as other:
            assert other.get_entity(Order, 1, ForUpdate | LockOptions.NoWait)
        assert kept
