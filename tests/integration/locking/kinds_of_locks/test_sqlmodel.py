"""SQLModel's Session combined with ours: its exec() takes the lock, and the guard applies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockMisuse, LockOptions, with_lock
from tests.integration.locking.steps import locks
from tests.support.actors import Actor
from tests.support.models import Order
from tests.support.waits import wait_until_blocked

sqlmodel = pytest.importorskip("sqlmodel")

FOR_UPDATE = LockOptions.ForUpdate


class AppSession(sqlmodel.Session, LockingSession):  # type: ignore[misc, name-defined]
    pass


def lock_by_exec(session: Any) -> Any:
    statement = with_lock(sqlmodel.select(Order), FOR_UPDATE)
    return session.exec(statement.where(Order.id == 1)).one().id, dict(session.held_locks)


def test_exec_waits_for_the_holder_and_locks(
    engine: sa.Engine, alice: Actor[LockingSession], dave: Callable[..., Actor[Any]]
) -> None:
    alice.does(locks(Order, 1))
    second = dave(sessionmaker(engine, class_=AppSession))
    queued = second.starts(lock_by_exec)
    wait_until_blocked(waiter=second, holder=alice, step=queued)
    alice.does(lambda session: session.rollback())
    assert queued.result(timeout=10) == (1, {(Order, (1,)): FOR_UPDATE})


def test_the_other_order_is_refused_when_the_class_is_made() -> None:
    with pytest.raises(LockMisuse, match=r"exec\(\) would call Session\.execute\(\) directly"):
        type("AppSession", (LockingSession, sqlmodel.Session), {})
