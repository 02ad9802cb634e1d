"""wait_until_blocked() of the test kit."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockNotSupported, LockOptions
from sa_doclock.testing import wait_until_blocked
from tests.support.models import Order

pytestmark = pytest.mark.read_committed

ForUpdate = LockOptions.ForUpdate


def test_it_returns_when_the_waiter_waits(session: LockingSession, other: LockingSession) -> None:
    session.get_one_entity(Order, 1, ForUpdate).total = 31
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(lambda: other.get_one_entity(Order, 1, ForUpdate).total)
        try:
            wait_until_blocked(other, session, step=step)
            assert not step.done()
        finally:
            session.commit()
        assert step.result(10) == 31
        pool.submit(other.close).result()


@pytest.mark.not_databases("sqlite")
def test_connections_that_wait(engine: sa.Engine) -> None:
    change = sa.update(Order).where(Order.id == 1).values(total=31)
    with (
        engine.connect() as first,
        engine.connect() as second,
        engine.connect() as third,
        ThreadPoolExecutor(2) as pool,
    ):
        first.execute(change)
        step = pool.submit(second.execute, change)
        try:
            wait_until_blocked(second, first)
            wait_until_blocked(second)
            behind = pool.submit(third.execute, change)
            wait_until_blocked(third, first, step=behind)
            with pytest.raises(AssertionError, match="does not wait for the holder after"):
                wait_until_blocked(second, third, timeout=0.1)
        finally:
            first.rollback()
        step.result(10)
        second.rollback()
        behind.result(10)


def test_a_waiter_that_does_not_wait(session: LockingSession, other: LockingSession) -> None:
    session.get_one(Order, 1)
    with pytest.raises(AssertionError, match=r"does not wait for the holder after 0\.05 s"):
        wait_until_blocked(session, other, timeout=0.05)
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(lambda: None)
        step.result(10)
        with pytest.raises(AssertionError, match="its step has ended"):
            wait_until_blocked(session, other, step=step)


@pytest.mark.databases("sqlite")
def test_of_a_connection_to_sqlite_nobody_can_tell(engine: sa.Engine) -> None:
    with engine.connect() as connection, pytest.raises(LockNotSupported, match="Connection"):
        wait_until_blocked(connection, timeout=0.05)


@pytest.mark.databases("sqlite")
def test_what_is_neither_session_nor_connection(engine: sa.Engine, session: LockingSession) -> None:
    wait: Callable[..., Any] = wait_until_blocked
    for arguments in ((engine, session), (session, 7)):
        with pytest.raises(TypeError, match="must be a session of ours or a Connection"):
            wait(*arguments)
