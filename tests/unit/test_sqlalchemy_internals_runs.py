"""The names by which sqlalchemy_internals.py finds the execution that has loaded an object.

Read are ``loading._new_runid``, ``context`` of a Result (since SQLAlchemy 2.1), ``_real_result`` of
a ScalarResult, ``_results`` of a MergedResult, and two that have no underscore and are not documented: ``InstanceState.runid``, and
``raw`` of a Result.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import ChunkedIteratorResult
from sqlalchemy.orm import selectinload
from sqlalchemy.orm.attributes import instance_state

from sa_doclock import LockingSession
from sa_doclock.dml_internals import merged_results, run_before, run_of
from tests.support.models import Line, Order


def bounds(above: int, result: Any) -> tuple[int, int]:
    last = run_of(result)
    return (above or last - 1), last


def run_of_object(thing: object) -> int:
    run = instance_state(thing).runid
    assert run is not None
    return run


def test_a_result_tells_the_number_of_its_objects(session: LockingSession) -> None:
    above = run_before()
    result = session.execute(sa.select(Order))
    above, last = bounds(above, result)
    assert all(above < run_of_object(order) <= last for order in result.scalars())
    above = run_before()
    above, last = bounds(above, session.execute(sa.select(Order).where(Order.id == 1)))
    assert not above < run_of_object(session.get_one(Order, 2)) <= last


def test_what_is_loaded_with_them_has_another_number(session: LockingSession) -> None:
    above = run_before()
    result = session.execute(sa.select(Order).options(selectinload(Order.lines)))
    above, last = bounds(above, result)
    orders = result.scalars().all()
    assert not any(above < run_of_object(line) <= last for one in orders for line in one.lines)


def test_what_is_loaded_in_part_keeps_its_number(session: LockingSession) -> None:
    order = session.get_one(Order, 1)
    run = run_of_object(order)
    session.expire(order)
    assert session.scalars(sa.select(Order).where(Order.id == 1)).one() is order
    assert "total" in sa.inspect(order).dict
    assert run_of_object(order) == run  # so a listener for "refresh" notes the new one


def test_results_of_objects_have_a_type_of_their_own_and_their_sql(session: LockingSession) -> None:
    result: Any = session.execute(sa.select(Order))
    assert result.raw.context.compiled.string.startswith("SELECT lk_order.id")
    assert type(result) is ChunkedIteratorResult
    assert type(session.execute(sa.select(Order.__table__))) is not ChunkedIteratorResult


def test_merged_results_know_theirs(session: LockingSession) -> None:
    both = session.execute(sa.select(Order)), session.execute(sa.select(Line))
    assert merged_results(both[0].merge(both[1])) == both
