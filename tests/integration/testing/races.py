"""Eleven pairs of functions that go wrong in some orders of their statements, each with its cure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import sqlalchemy as sa

from sa_doclock import LockOptions
from sa_doclock.testing import Outcome
from tests.integration.testing import test_two_at_once as endpoints
from tests.integration.testing.test_two_at_once import Endpoint, Shop
from tests.support.models import Line, Order

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
Elsewhere = Callable[..., list[Any]]
BOTH_TOTALS = sa.select(Order).where(Order.id.in_([1, 2])).order_by(Order.id)
FIRST_LINE = 100
MOST_LINES = 3
LIMIT = 30


class Race(NamedTuple):
    """A wrong program and the right one.

    :ivar anomaly: of the wrong one.
    :ivar holds: whether the data, and what the two have returned, are right.
    """

    name: str
    anomaly: str
    wrong: tuple[Endpoint, Endpoint]
    right: tuple[Endpoint, Endpoint]
    holds: Callable[[Elsewhere, Outcome, Outcome], bool]


def one_total(elsewhere: Elsewhere, first: Outcome, second: Outcome) -> bool:
    succeeded = sum(one.error is None for one in (first, second))
    ((total,),) = elsewhere(sa.select(Order.total).where(Order.id == 1))
    return bool(total == 30 + 10 * succeeded)


# A value that an earlier transaction has read.


def read_in_another_session(shop: Shop, number: int) -> None:
    with shop.plain() as reader:
        total = reader.get_one(Order, 1).total
    with shop.locking() as session, session.locked(Order, 1) as order:
        order.total = total + 10 * number


def lock_in_a_savepoint(shop: Shop, number: int) -> None:
    with shop.locking() as session:
        total = session.get_one(Order, 1).total
        savepoint = session.begin_nested()
        session.get_entity(Order, 1, ForUpdate)
        savepoint.rollback()
        session.get_one(Order, 1).total = total + 10 * number
        session.commit()


def read_under_the_lock(shop: Shop, number: int) -> None:
    with shop.locking() as session, session.locked(Order, 1) as order:
        order.total += 10 * number


def both_added(elsewhere: Elsewhere, *_: Outcome) -> bool:
    ((total,),) = elsewhere(sa.select(Order.total).where(Order.id == 1))
    return bool(total == 30 + 10 + 20)


# Write skew: the two totals together must stay above a limit.


def take_if_enough(shop: Shop, number: int) -> None:
    with shop.plain() as session:
        orders = {order.id: order for order in session.scalars(BOTH_TOTALS)}
        if sum(order.total for order in orders.values()) >= LIMIT:
            orders[number].total -= 30
        session.commit()


def take_with_locks(shop: Shop, number: int) -> None:
    with shop.locking() as session, session.begin():
        orders = {order.id: order for order in session.get_entities(Order, [1, 2], ForUpdate)}
        if sum(order.total for order in orders.values()) >= LIMIT:
            orders[number].total -= 30


def taken_once(elsewhere: Elsewhere, *_: Outcome) -> bool:
    ((total,),) = elsewhere(sa.select(sa.func.sum(Order.total)).where(Order.id.in_([1, 2])))
    return bool(total >= 0)


# A phantom: an order must not have more lines than this.


def add_if_few(shop: Shop, number: int) -> None:
    with shop.plain() as session:
        count = session.scalars(sa.select(sa.func.count(Line.id)).where(Line.order_id == 1)).one()
        if count < MOST_LINES:
            session.add(Line(id=FIRST_LINE + number, order_id=1, name="new", value=0))
        session.commit()


def add_under_the_header(shop: Shop, number: int) -> None:
    with shop.locking() as session, session.locked(Order, 1) as order:
        if len(order.lines) < MOST_LINES:
            order.lines.append(Line(id=FIRST_LINE + number, name="new", value=0))


def few_lines(elsewhere: Elsewhere, *_: Outcome) -> bool:
    ((count,),) = elsewhere(sa.select(sa.func.count(Line.id)).where(Line.order_id == 1))
    return bool(count <= MOST_LINES)


# Read skew: what is read of an order must belong together.


def read_both(shop: Shop, _: int) -> tuple[int, int]:
    with shop.plain() as session:
        total = session.scalars(sa.select(Order.total).where(Order.id == 1)).one()
        values = session.scalars(sa.select(sa.func.sum(Line.value)).where(Line.order_id == 1)).one()
        session.commit()
        return total, int(values)


def read_together(shop: Shop, _: int) -> tuple[int, int]:
    with shop.locking() as session, session.begin():
        order = session.get_one_entity(Order, 1, SharedRead)
        return order.total, sum(line.value for line in order.lines)


def change_both(shop: Shop, _: int) -> None:
    with shop.locking() as session, session.locked(Order, 1) as order:
        order.lines[0].value += 10
        order.total += 10


def belong_together(_: Elsewhere, first: Outcome, second: Outcome) -> bool:
    if second.error is not None or first.error is not None:
        return True
    total, values = first.result()
    return bool(total == values)


# The header is computed from details that the other one adds to.


def sum_up(shop: Shop, number: int) -> None:
    with shop.plain() as session:
        order = session.get_one(Order, 1)
        order.lines.append(Line(id=FIRST_LINE + number, name="new", value=5))
        order.total = sum(line.value for line in order.lines)
        session.commit()


def sum_up_under_the_header(shop: Shop, number: int) -> None:
    with shop.locking() as session, session.locked(Order, 1) as order:
        order.lines.append(Line(id=FIRST_LINE + number, name="new", value=5))
        order.total = sum(line.value for line in order.lines)


def summed_up(elsewhere: Elsewhere, *_: Outcome) -> bool:
    ((total,),) = elsewhere(sa.select(Order.total).where(Order.id == 1))
    ((values,),) = elsewhere(sa.select(sa.func.sum(Line.value)).where(Line.order_id == 1))
    return bool(total == values)


def lost_update(name: str, wrong: Endpoint, right: Endpoint) -> Race:
    return Race(name, "lost update", (wrong, wrong), (right, right), one_total)


RACES: tuple[Race, ...] = (
    lost_update("no-lock", endpoints.no_lock, endpoints.block),
    lost_update("computed-here", endpoints.plain_session, endpoints.one_statement),
    lost_update("lock-after-read", endpoints.lock_after_the_read, endpoints.with_for_update),
    Race(
        "two-sessions",
        "lost update",
        (read_in_another_session,) * 2,
        (read_under_the_lock,) * 2,
        both_added,
    ),
    lost_update("committed-too-early", endpoints.committed_too_early, endpoints.get_one_entity),
    Race(
        "savepoint",
        "lost update",
        (lock_in_a_savepoint,) * 2,
        (read_under_the_lock,) * 2,
        both_added,
    ),
    lost_update("autocommit", endpoints.autocommit, endpoints.with_for_update),
    Race("write-skew", "write skew", (take_if_enough,) * 2, (take_with_locks,) * 2, taken_once),
    Race("phantom", "write skew", (add_if_few,) * 2, (add_under_the_header,) * 2, few_lines),
    Race(
        "read-skew",
        "read skew",
        (read_both, change_both),
        (read_together, change_both),
        belong_together,
    ),
    Race("sum-of-details", "lost update", (sum_up,) * 2, (sum_up_under_the_header,) * 2, summed_up),
)
