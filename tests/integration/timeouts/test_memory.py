"""A limit keeps no statement of the caller alive, and makes none anew that is there already."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from sa_doclock import LockingSession, LockOptions
from sa_doclock.core.locking import wait_limit as waiting
from sa_doclock.core.statements.by_key import lock_by_key
from sa_doclock.dialects import strategy_for
from tests.support.models import Lease, Order, Voucher

pytestmark = pytest.mark.databases("postgresql", "mysql", "mariadb")

ForUpdate = LockOptions.ForUpdate
Session = LockingSession


def lock_by_set(session: Session, number: int) -> weakref.ref[Any]:
    statement = session.entity_set(Order, ForUpdate, lock_timeout=5.5).where(Order.id == number)
    session.scalars(statement).all()
    session.rollback()
    return weakref.ref(statement)


def test_a_set_is_forgotten(session: Session) -> None:
    lock_by_set(session, 1)
    kept = len(waiting._last)
    references = [lock_by_set(session, number) for number in (1, 2, 3)]
    session.get_entities(Voucher, [(2024, 1), (2024, 2)], ForUpdate, lock_timeout=5.5)
    session.rollback()
    gc.collect()
    assert [reference() for reference in references] == [None] * 3
    assert len(waiting._last) <= kept  # less, where mappers have been made meanwhile


def test_one_by_key_is_made_once_for_each_limit(session: Session) -> None:
    statement = lock_by_key(Lease.__mapper__, ForUpdate)
    strategy = strategy_for(session.get_bind())

    def timed(seconds: float) -> Any:
        return waiting.WaitLimit(strategy, ForUpdate, seconds).timed(statement)

    first = timed(5.5)
    assert timed(5.5) is first
    assert str(timed(6.5)) == str(strategy.waits.timed(statement, ForUpdate, 6.5))
    assert str(timed(5.5)) == str(first)
