"""A flush of many rows: of some that are held and some that are not, and what each row costs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockingSession, UnlockedWrite
from tests.integration.guard.models import Budget, Entry, Line, Order, Post, Voucher
from tests.integration.guard.steps import hold, refused
from tests.integration.locking.call_counts import calls_of
from tests.support.rows import rows

pytestmark = pytest.mark.quick

NUMBERS = range(101, 106)


def by_key(session: LockingSession, order: int) -> None:
    session.add(Line(id=200, order_id=order))


def by_owner(session: LockingSession, order: int) -> None:
    with session.no_autoflush:
        session.add(Line(id=200, order=session.get_one(Order, order)))


def by_owner_against_key(session: LockingSession, order: int) -> None:
    with session.no_autoflush:
        session.add(Line(id=200, order_id=3 - order, order=session.get_one(Order, order)))


@pytest.mark.parametrize("add", [by_key, by_owner, by_owner_against_key])
def test_one_of_many_new_rows_is_of_another_document(
    session: LockingSession, add: Callable[[LockingSession, int], None]
) -> None:
    held = hold(session, Order, 1)
    session.add_all([Line(id=number, order_id=1) for number in NUMBERS])
    add(session, 2)
    with refused(session, Order, 2, "a new Line would be inserted"):
        session.flush()
    assert held


def test_new_rows_of_a_new_and_of_a_held_document(session: LockingSession) -> None:
    held, new = hold(session, Order, 1)[0], Order(id=9)
    session.add(new)
    for number in NUMBERS:
        session.add(Line(id=number, order=new if number % 2 else held))
    session.commit()
    with refused(session, Order, 9):
        session.add(Line(id=200, order_id=9))
        session.flush()


def test_one_of_many_deleted_rows_is_of_another_document(session: LockingSession) -> None:
    held = hold(session, Order, 1)
    for line in session.scalars(sa.select(Line).where(Line.order_id.in_([1, 2]))).all():
        session.delete(line)
    with refused(session, Order, 2, "would be deleted"):
        session.flush()
    assert held


def test_a_deleted_row_that_a_listener_moves_first(session: LockingSession) -> None:
    """Its document was held when the flush began."""
    line = hold(session, Order, 1)[0].lines[0]
    session.delete(line)

    def move(*_: object) -> None:
        line.order_id = 2

    event.listen(session, "before_flush", move)
    with pytest.raises(UnlockedWrite, match="Order 2"):
        session.flush()


def new_lines(session: LockingSession, count: int) -> None:
    session.add_all([Line(id=100 + number, order_id=1) for number in range(count)])


def new_lines_of_the_owner(session: LockingSession, count: int) -> None:
    lines = session.get_one(Order, 1).lines
    lines.extend(Line(id=100 + number) for number in range(count))


def a_new_order(session: LockingSession, count: int) -> None:
    session.add(Order(id=9, lines=[Line(id=100 + number) for number in range(count)]))


def new_entries(session: LockingSession, count: int) -> None:
    """They do not know their voucher: the flush sets their foreign keys."""
    entries = session.get_one(Voucher, (2024, 1)).entries
    entries.extend(Entry(id=100 + number) for number in range(count))


def changed_lines(session: LockingSession, count: int) -> None:
    new_lines(session, count)
    session.flush()
    for line in session.get_one(Order, 1).lines:
        line.value += 1


def deleted_lines(session: LockingSession, count: int) -> None:
    new_lines(session, count)
    session.flush()
    lines = session.scalars(sa.select(Line).where(Line.id >= 100)).all()
    with session.no_autoflush:  # else each is written before the next
        for line in lines:
            session.delete(line)


@pytest.mark.databases("sqlite")
@rows(
    "prepare, most",
    [
        (new_lines, 4),
        (new_lines_of_the_owner, 4),
        (a_new_order, 4),
        (new_entries, 5),
        (changed_lines, 2),
        (deleted_lines, 1),
    ],
    lambda value: getattr(value, "__name__", value),
)
def test_a_row_that_is_held_costs_the_guard_few_calls(
    session: LockingSession, prepare: Callable[[LockingSession, int], None], most: int
) -> None:
    def calls(count: int) -> int:
        held = hold(session, Order, 1), hold(session, Voucher, (2024, 1))
        prepare(session, count)
        found = calls_of(session.flush)
        session.rollback()
        assert held
        return sum(call.lstrip().startswith("guard/") for call in found)

    calls(1), calls(2)  # what is found out once for each mapper, and each statement
    assert (calls(30) - calls(10)) / 20 <= most


@pytest.mark.parametrize("code", ["b", sa.func.lower("B")], ids=["value", "SQL"])
@pytest.mark.parametrize("expired", [False, True])
def test_rows_whose_owner_the_database_tells_and_a_listener_moves(
    session: LockingSession, code: object, expired: bool
) -> None:
    """All were asked about at once when the flush began, and none again but the one that moves."""
    (budget,) = hold(session, Budget, 1)
    budget.posts += [Post(id=number) for number in NUMBERS]
    session.flush()
    for post in budget.posts:
        if expired:
            session.expire(post, ["code"])
        post.value += 1

    def move(_mapper: object, _connection: object, post: Post) -> None:
        if post.id == NUMBERS[2]:
            post.code = code  # type: ignore[assignment]

    event.listen(Post, "before_update", move)
    try:
        with refused(session, Budget, 2, sent_first=True):
            session.flush()
    finally:
        event.remove(Post, "before_update", move)


@pytest.mark.parametrize("held", [1, 2])
def test_one_of_many_rows_whose_owner_the_database_tells_is_of_another_document(
    session: LockingSession, held: int
) -> None:
    budget = hold(session, Budget, held)[0]
    budget.posts += [Post(id=number) for number in NUMBERS]
    session.flush()
    for post in session.scalars(sa.select(Post)).all():
        post.value += 1
    with refused(session, Budget, 3 - held):
        session.flush()
