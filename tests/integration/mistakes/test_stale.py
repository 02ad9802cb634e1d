"""Values that were read before the lock are used after it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, joinedload

from sa_doclock import LockingSession, LockNotSupported, LockOptions, with_lock
from tests.integration.mistakes.models import Order
from tests.integration.mistakes.test_unlocked import Meanwhile, Stored, add_ten
from tests.support.actors import Actor
from tests.support.waits import wait_until_blocked

ForUpdate = LockOptions.ForUpdate
LOCK = sa.select(Order).where(Order.id == 1).with_for_update(of=Order)


def test_an_object_that_was_read_before_the_lock(
    plain: Session, locking: LockingSession, meanwhile: Meanwhile, stored: Stored
) -> None:
    seen = [session.get_one(Order, 1) for session in (plain, locking)]
    assert [order.total for order in seen] == [30, 30]
    meanwhile(add_ten)
    order = plain.scalars(LOCK).one()
    order.total += 1
    plain.commit()
    assert stored(1) == (31, [20, 20])  # ten are lost

    meanwhile(lambda session: setattr(session.get_one(Order, 1), "total", 40))
    with locking.locked(Order, 1) as mine:
        assert mine is seen[1]
        mine.total += 1
    assert stored(1) == (41, [20, 20])


def test_lines_that_were_read_before_the_lock(
    plain: Session, locking: LockingSession, meanwhile: Meanwhile
) -> None:
    lines = [session.get_one(Order, 1).lines[0] for session in (plain, locking)]
    assert [line.value for line in lines] == [10, 10]
    meanwhile(add_ten)
    plain.scalars(LOCK, execution_options={"populate_existing": True}).one()
    assert lines[0].value == 10
    plain.rollback()
    locking.get_one_entity(Order, 1, ForUpdate)
    assert lines[1].value == 20


@pytest.mark.databases("postgresql")
def test_lock_and_lines_in_one_statement(
    alice: Actor[LockingSession],
    plain_actors: tuple[Actor[Session], Actor[Session]],
) -> None:
    reader, _ = plain_actors
    alice.does(lambda session: session.get_entity(Order, 1, ForUpdate))
    alice.does(add_ten)
    alice.does(lambda session: session.flush())

    def read(session: Session) -> tuple[int, int]:
        order = session.scalars(LOCK.options(joinedload(Order.lines))).unique().one()
        return order.total, sum(line.value for line in order.lines)

    step = reader.starts(read)
    wait_until_blocked(waiter=reader, holder=alice, step=step)
    alice.does(lambda session: session.save_changes())
    assert step.result() == (40, 30)


@pytest.mark.not_databases("postgresql")
def test_lock_and_lines_in_one_statement_is_refused_everywhere(locking: LockingSession) -> None:
    _refuses(locking)


@pytest.mark.databases("postgresql")
def test_lock_and_lines_in_one_statement_is_refused_there_too(locking: LockingSession) -> None:
    _refuses(locking)


def _refuses(locking: LockingSession) -> None:
    options: list[Callable[[], object]] = [
        lambda: locking.get_entity(Order, 1, ForUpdate, options=[joinedload(Order.lines)]),
        lambda: with_lock(sa.select(Order).options(joinedload(Order.lines)), ForUpdate),
    ]
    for refused in options:
        with pytest.raises(LockNotSupported, match="selectinload"):
            refused()
