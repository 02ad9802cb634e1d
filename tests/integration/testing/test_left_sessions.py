"""The end of sessions that a test has left, from another thread and after their event loop.

tests/unit/test_pytest_plugin_leaks.py has the option ``--doclock-leaks``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_doclock import AsyncLockingSession, LockingSession, LockOptions
from sa_doclock.testing.open_sessions import OpenSessions, OpenTransaction, end_session
from tests.integration.testing.test_async_engines import NewEngines, collected, new_engines
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Order
from tests.support.waits import wait_until_blocked

__all__ = ["new_engines"]

pytestmark = pytest.mark.read_committed
Lock = Callable[[], None]


@pytest.fixture
def open_sessions() -> Iterator[OpenSessions]:
    found = OpenSessions(lambda: None)
    found.listen()
    yield found
    found.forget()


@pytest.fixture
def lock(enter: Callable[[str], Actor[LockingSession]]) -> Lock:
    """Lock the order in another session, which waits until it is free."""
    other = enter("other")

    def lock() -> None:
        other.does(lambda session: session.get_one_entity(Order, 1, LockOptions.ForUpdate))
        other.does(lambda session: session.rollback())

    return lock


def the_open_one(open_sessions: OpenSessions) -> tuple[Session, OpenTransaction]:
    (found,) = open_sessions.found()
    return found


@pytest.mark.parametrize("loop_closed", [True, False])
def test_of_asyncio(
    new_engines: NewEngines,
    open_sessions: OpenSessions,
    lock: Lock,
    caplog: pytest.LogCaptureFixture,
    *,
    loop_closed: bool,
) -> None:
    for engine in new_engines(pool_size=1, max_overflow=0):
        loop = asyncio.new_event_loop()
        with collected():
            left = AsyncLockingSession(engine)
            loop.run_until_complete(left.get_one_entity(Order, 1, LockOptions.ForUpdate))
            if loop_closed:
                loop.close()
            found = the_open_one(open_sessions)
            assert found[1].held
            assert end_session(*found) is None
            assert open_sessions.found() == []
            lock()
            assert engine.pool.status().endswith("Current Checked out connections: 0")
            if not loop_closed:
                loop.run_until_complete(engine.dispose())
                loop.close()
    caplog.clear()  # of what the pool says about connections that it cannot close


def test_of_a_thread_that_waits_for_another(
    open_sessions: OpenSessions,
    alice: Actor[LockingSession],
    bob: Actor[LockingSession],
    lock: Lock,
) -> None:
    order = Order, 1, LockOptions.ForUpdate
    alice.does(lambda session: session.get_one_entity(*order))
    step = bob.starts(lambda session: session.get_one_entity(*order))
    wait_until_blocked(waiter=bob, holder=alice, step=step)
    sessions = open_sessions.found()
    assert [bool(transaction.held) for _, transaction in sessions] == [True, False]
    assert [end_session(*one) for one in sessions] == [None, None]
    assert step.result() is not None  # it had its turn
    assert open_sessions.found() == []
    lock()


def test_of_a_thread_that_waits_for_another_program(
    open_sessions: OpenSessions,
    alice: Actor[LockingSession],
    bob: Actor[LockingSession],
    documents: Database,
) -> None:
    order = Order, 1, LockOptions.ForUpdate
    alice.does(lambda session: session.get_one_entity(*order))
    step = bob.starts(lambda session: session.get_one_entity(*order))
    wait_until_blocked(waiter=bob, holder=alice, step=step)
    _, waiting = open_sessions.found()
    error = end_session(*waiting)
    if documents.name == "sqlite":  # there is no server that could be left
        assert str(error) == "thread bob is in the middle of a call"
    else:
        assert error is None
        assert isinstance(step.exception(), DBAPIError)
    alice.does(lambda session: session.rollback())
    if documents.name == "sqlite":
        step.result()
        bob.does(lambda session: session.rollback())
    assert open_sessions.found() == []
