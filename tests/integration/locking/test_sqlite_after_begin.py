"""SQLite: the writes of an after_begin listener precede the lock, and stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockingSession, LockOptions
from tests.integration.locking.steps import finds_held
from tests.integration.locking.test_sqlite_begin import hooked
from tests.support.actors import Actor
from tests.support.models import Customer, Order
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.databases("sqlite")

ForUpdate, SharedRead, SnapshotRead = (
    LockOptions.ForUpdate,
    LockOptions.SharedRead,
    LockOptions.SnapshotRead,
)
Run = Callable[..., list[Any]]
NAME = sa.select(Customer.name).where(Customer.id == 1)
WRITE = sa.update(Customer).where(Customer.id == 1).values(name="by a listener")


def _lock_row(session: LockingSession) -> None:
    session.get_one_entity(Order, 1, ForUpdate)


def _lock_name(session: LockingSession) -> None:
    session.lock_key("a")


@pytest.fixture(params=[False, True], ids=["plain", "hooked"])
def engine(request: pytest.FixtureRequest, make_engine: Callable[..., sa.Engine]) -> sa.Engine:
    """Make an engine, with or without its own BEGIN."""
    engine = make_engine()
    return hooked(engine) if request.param else engine


@pytest.fixture
def writing(engine: sa.Engine) -> Iterator[LockingSession]:
    """Open a session whose listener writes at the start of each transaction."""
    with LockingSession(engine) as session:
        event.listen(session, "after_begin", lambda _s, _t, connection: connection.execute(WRITE))
        yield session


@pytest.mark.parametrize("take", [_lock_row, _lock_name])
def test_it_is_committed_with_the_rest(
    writing: LockingSession,
    other: LockingSession,
    elsewhere: Run,
    take: Callable[[LockingSession], None],
) -> None:
    take(writing)
    assert elsewhere(NAME) == [("Ann",)]
    assert finds_held()(other)
    writing.save_changes()
    assert elsewhere(NAME) == [("by a listener",)]


@pytest.mark.parametrize("lock", [ForUpdate, SharedRead, SnapshotRead])
def test_it_is_seen_in_the_transaction(writing: LockingSession, lock: LockOptions) -> None:
    writing.get_one_entity(Order, 1, lock)
    assert writing.scalar(NAME) == "by a listener"


def test_it_is_rolled_back_with_the_rest(writing: LockingSession, elsewhere: Run) -> None:
    writing.get_one_entity(Order, 1, ForUpdate)
    writing.rollback()
    assert elsewhere(NAME) == [("Ann",)]


@pytest.mark.parametrize("take", [_lock_row, _lock_name])
def test_one_that_changes_no_row(
    engine: sa.Engine,
    alice: Actor[LockingSession],
    bob: Actor[LockingSession],
    take: Callable[[LockingSession], None],
) -> None:
    """A transaction that a hook begins waits for the write lock, as BEGIN IMMEDIATE does."""
    create = sa.text("CREATE TEMPORARY TABLE IF NOT EXISTS lk_aside AS SELECT 1 AS one")
    event.listen(engine, "begin", lambda connection: connection.execute(create))
    alice.does(take)
    queued = bob.starts(take)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(lambda session: session.rollback())
    queued.result()
    assert bob.does(lambda session: session.scalar(sa.text("SELECT one FROM lk_aside"))) == 1
    bob.does(lambda session: session.rollback())
