"""Workers that share out the rows of a table by SkipLocked: each row comes to one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions
from tests.support.actors import Actor
from tests.support.models import Order

WORKERS, ROWS = 4, range(3, 43)


def work(session: LockingSession) -> list[int]:
    """Do one order after the other, until there is none that nobody holds."""
    done = []
    todo = Order.total == 0
    free = session.entity_set(Order, LockOptions.ForUpdate | LockOptions.SkipLocked)
    query = free.where(todo).order_by(Order.id).limit(1)
    while order := session.scalars(query).first():
        done.append(order.id)
        order.total += 1
        session.save_changes()
    session.rollback()
    return done


@pytest.mark.not_databases("sqlite")  # nothing to skip
def test_each_row_is_done_once(
    enter: Callable[[str], Actor[LockingSession]], elsewhere: Callable[..., list[Any]]
) -> None:
    elsewhere(sa.insert(Order).values([{"id": n, "total": 0, "remark": ""} for n in ROWS]))
    steps = [enter(f"worker {n}").starts(work) for n in range(WORKERS)]
    done = [ident for step in steps for ident in step.result()]
    assert sorted(done) == list(ROWS)
    assert elsewhere(sa.select(Order.total).where(Order.id > 2).distinct()) == [(1,)]


def test_without_a_lock_two_workers_find_the_same(
    session: LockingSession, other: LockingSession
) -> None:
    query = sa.select(Order).order_by(Order.id).limit(1)
    kept = [worker.scalars(query).one() for worker in (session, other)]
    assert [order.id for order in kept] == [1, 1]
