"""A header read as its base class: what subclasses add to the SELECT is read after the grant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import aliased, column_property, registry, relationship, with_polymorphic

from sa_doclock import LockingSession, LockOptions
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


def _hierarchy(*, base: dict[str, Any], sub: dict[str, Any], lazy: Any) -> Any:
    """Map a class of orders, and a subclass with lines and their sum; every row is of the latter."""
    mappers = registry()
    paper: Any = type("Paper", (), {})
    bill: Any = type("Bill", (paper,), {})
    kind = sa.case((_orders.c.id > 0, "bill"), else_="paper")
    mappers.map_imperatively(
        paper,
        _orders,
        polymorphic_on=kind,
        polymorphic_identity="paper",
        exclude_properties=["remark"],
        **base,
    )
    lines = relationship(
        Line, primaryjoin=_lines.c.order_id == _orders.c.id, viewonly=True, lazy=lazy
    )
    mappers.map_imperatively(
        bill,
        inherits=paper,
        polymorphic_identity="bill",
        properties={"lines": lines, "sum_of_lines": column_property(_SUM)},
        exclude_properties=["remark"],
        **sub,
    )
    return paper


MAPPINGS: dict[str, Any] = {
    "inline, joined": _hierarchy(base={}, sub={"polymorphic_load": "inline"}, lazy="joined"),
    "inline, subquery": _hierarchy(base={}, sub={"polymorphic_load": "inline"}, lazy="subquery"),
    "star, joined": _hierarchy(base={"with_polymorphic": "*"}, sub={}, lazy="joined"),
    "selectin, joined": _hierarchy(base={}, sub={"polymorphic_load": "selectin"}, lazy="joined"),
    "not loaded": _hierarchy(base={}, sub={}, lazy="joined"),
}


def by_key(session: LockingSession, paper: Any) -> Any:
    return session.get_one_entity(paper, 1, ForUpdate)


def by_keys(session: LockingSession, paper: Any) -> Any:
    (found,) = session.get_entities(paper, [1], SharedRead)
    return found


def as_document(session: LockingSession, paper: Any) -> Any:
    found = session.get_document(paper, 1, ForUpdate)
    assert found is not None
    return found


def in_a_set(session: LockingSession, paper: Any) -> Any:
    return session.scalars(session.entity_set(paper, ForUpdate).where(paper.id == 1)).one()


def aliased_set(session: LockingSession, paper: Any) -> Any:
    alias: Any = aliased(paper)
    return session.scalars(session.entity_set(alias, ForUpdate).where(alias.id == 1)).one()


def polymorphic_set(session: LockingSession, paper: Any) -> Any:
    every: Any = with_polymorphic(paper, "*")
    return session.scalars(session.entity_set(every, SharedRead).where(every.id == 1)).one()


READS = [by_key, by_keys, as_document, in_a_set, aliased_set, polymorphic_set]


@pytest.mark.not_databases("sqlite", "mssql")  # where nobody waits for a row
@pytest.mark.parametrize("paper", MAPPINGS.values(), ids=MAPPINGS)
@pytest.mark.parametrize("read", READS)
def test_header_and_what_its_subclass_adds_belong_together(
    alice: Actor[LockingSession],
    bob: Actor[LockingSession],
    paper: Any,
    read: Callable[[LockingSession, Any], Any],
) -> None:
    def look(session: LockingSession) -> tuple[int, int, int]:
        found = read(session, paper)
        return found.total, sum(line.value for line in found.lines), int(found.sum_of_lines)

    alice.does(add_ten)
    step = bob.starts(look)
    wait_until_blocked(waiter=bob, holder=alice, step=step)
    alice.does(save)
    assert step.result() == (40, 40, 40)


@pytest.mark.parametrize("paper", MAPPINGS.values(), ids=MAPPINGS)
@pytest.mark.parametrize("read", READS)
def test_every_way_to_read_it_is_a_lock(
    session: LockingSession, paper: Any, read: Callable[[LockingSession, Any], Any]
) -> None:
    read(session, paper)
    assert list(session.held_locks) == [(paper, (1,))]
