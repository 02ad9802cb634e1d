"""A block whose own lock has ended inside saves nothing that was changed after that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockLost, LockOptions
from tests.support.models import Line, Order

pytestmark = [pytest.mark.quick, pytest.mark.read_committed]

Session = LockingSession
Step = Callable[[Session, Order], object]
Run = Callable[..., list[Any]]
TOTAL = sa.select(Order.total).where(Order.id == 1)


def commit_and_flush(session: Session, order: Order) -> None:
    session.commit()
    order.total = 31
    session.flush()


def commit_and_update(session: Session, _: Order) -> None:
    session.commit()
    session.execute(sa.update(Order).where(Order.id == 1).values(total=31))


def commit_and_add(session: Session, order: Order) -> None:
    session.commit()
    order.lines.append(Line(id=90, name="new", value=1))


ENDS: dict[str, Step] = {
    "commit": lambda session, _: session.commit(),
    "save_changes": lambda session, _: session.save_changes(),
    "rollback": lambda session, _: session.rollback(),
    "release_locks": lambda session, _: session.release_locks(),
}
WRITES: dict[str, Step] = {
    "flush": commit_and_flush,
    "statement": commit_and_update,
    "new part": commit_and_add,
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_change_after_the_end_is_not_saved(session: Session, elsewhere: Run, end: Step) -> None:
    def change() -> None:
        with session.locked(Order, 1) as order:
            end(session, order)
            order.total = 31

    with pytest.raises(
        LockLost, match=r"^Order 1 FOR UPDATE on \w+: .* inside the locked\(\) block"
    ):
        change()
    assert not session.in_transaction()
    assert elsewhere(TOTAL) == [(30,)]


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_nor_what_was_written_at_once(session: Session, elsewhere: Run, write: Step) -> None:
    def change() -> None:
        with session.locked(Order, 1) as order:
            write(session, order)

    with pytest.raises(LockLost):
        change()
    assert elsewhere(TOTAL) == [(30,)]
    assert elsewhere(sa.select(Line.id).where(Line.id == 90)) == []


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_block_that_only_reads_after_the_end_is_left_alone(session: Session, end: Step) -> None:
    with session.locked(Order, 1) as order:
        end(session, order)
        assert order.total == 30


def test_a_lock_that_was_taken_again_counts(session: Session, elsewhere: Run) -> None:
    with session.locked(Order, 1) as order:
        session.commit()
        session.get_one_entity(Order, 1, LockOptions.ForUpdate)
        order.total = 31
    assert elsewhere(TOTAL) == [(31,)]


def test_an_inner_block_too(session: Session, elsewhere: Run) -> None:
    def change() -> None:
        with session.locked(Order, 2), session.locked(Order, 1) as order:
            session.commit()
            order.total = 31

    with pytest.raises(LockLost):
        change()
    assert elsewhere(TOTAL) == [(30,)]
