"""A header with a column that is computed from its details: read after the grant, as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Bundle, column_property, registry

from sa_doclock import LockingSession, LockOptions, with_lock
from tests.integration.locking.steps import add_ten, save
from tests.support.actors import Actor
from tests.support.models import Line, Order
from tests.support.waits import wait_until_blocked

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
_orders: Any = Order.__table__
_lines: Any = Line.__table__
_SUM = (
    sa.select(sa.func.sum(_lines.c.value))
    .where(_lines.c.order_id == _orders.c.id)
    .scalar_subquery()
)


class Summed:
    """An order that brings the sum of its lines along."""

    id: Any
    total: Any
    sum_of_lines: Any


registry().map_imperatively(
    Summed,
    _orders,
    properties={"sum_of_lines": column_property(_SUM)},
    exclude_properties=["remark"],
)

Read = Callable[[LockingSession], tuple[int, int]]


def by_key(session: LockingSession) -> tuple[int, int]:
    order = session.get_one_entity(Summed, 1, ForUpdate)
    return order.total, int(order.sum_of_lines)


def by_keys(session: LockingSession) -> tuple[int, int]:
    (order,) = session.get_entities(Summed, [1], SharedRead)
    return order.total, int(order.sum_of_lines)


def in_a_set(session: LockingSession) -> tuple[int, int]:
    order = session.scalars(session.entity_set(Summed, ForUpdate).where(Summed.id == 1)).one()
    return order.total, int(order.sum_of_lines)


def beside_the_order(session: LockingSession) -> tuple[int, int]:
    statement = with_lock(sa.select(Order, _SUM).where(Order.id == 1), ForUpdate)
    order, total = session.execute(statement).one()
    return order.total, int(total)


def _beside_the_total(session: LockingSession, *columns: Any) -> tuple[int, int]:
    statement = with_lock(sa.select(*columns).where(Summed.id == 1), ForUpdate, Summed)
    total, computed = session.execute(statement).one()
    return total, int(computed)


def as_attributes(session: LockingSession) -> tuple[int, int]:
    return _beside_the_total(session, Summed.total, Summed.sum_of_lines)


def as_text(session: LockingSession) -> tuple[int, int]:
    text: Any = sa.literal_column("(SELECT sum(value) FROM lk_line WHERE order_id = lk_order.id)")
    return _beside_the_total(session, Summed.total, text)


def in_a_bundle(session: LockingSession) -> tuple[int, int]:
    bundle: Any = Bundle("both", Summed.total, Summed.sum_of_lines)
    statement = with_lock(sa.select(bundle).where(Summed.id == 1), ForUpdate, Summed)
    total, computed = session.scalars(statement).one()
    return total, int(computed)


READS = [by_key, by_keys, in_a_set, beside_the_order, as_attributes, as_text, in_a_bundle]


@pytest.mark.not_databases("sqlite", "mssql")  # where nobody waits for a row
@pytest.mark.parametrize("read", READS)
def test_header_and_sum_belong_together(
    alice: Actor[LockingSession], bob: Actor[LockingSession], read: Read
) -> None:
    alice.does(add_ten)
    step = bob.starts(read)
    wait_until_blocked(waiter=bob, holder=alice, step=step)
    alice.does(save)
    assert step.result() == (40, 40)
