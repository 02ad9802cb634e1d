"""A commit on another node ends the transaction that is in its way here, which hears of it late.

The holder's next statement, whichever it is, says 1213, and so does its ROLLBACK.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import InvalidRequestError, PendingRollbackError
from sqlalchemy.ext.asyncio import create_async_engine

from sa_doclock import AsyncLockingSession, DeadlockDetected, LockingSession, LockOptions
from tests.integration.asyncio.drivers import for_asyncio
from tests.integration.locking.steps import TEN_MORE, add_ten
from tests.reliability.cluster.nodes import Nodes
from tests.support.models import Customer, Line, Order

pytestmark = pytest.mark.filterwarnings("ignore::sa_doclock.ClusterLockWarning")

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
Act = Callable[[LockingSession], object]
Abort = Callable[[], None]


@pytest.fixture
def abort(nodes: Nodes, one: LockingSession) -> Abort:
    """Return a function that commits on the first node, and returns when the second has it."""

    def write_elsewhere() -> None:
        add_ten(one)
        one.save_changes()
        nodes.catch_up()

    return write_elsewhere


def read(session: LockingSession) -> object:
    return session.scalars(sa.select(Customer.name)).all()


def execute(session: LockingSession) -> object:
    return session.execute(sa.update(Line).where(Line.id == 1).values(value=99))


def flush(session: LockingSession) -> None:
    session.get_one_entity(Order, 1, ForUpdate).total = 99
    session.flush()


def lock_another(session: LockingSession) -> object:
    return session.get_entity(Order, 2, ForUpdate)


def lock_a_set(session: LockingSession) -> object:
    return session.scalars(session.entity_set(Customer, ForUpdate)).all()


def lock_within(session: LockingSession) -> object:
    first = sa.select(Customer.id).where(Customer.id == 1).with_for_update().scalar_subquery()
    return session.scalars(sa.select(Order.total).where(Order.id == first)).all()


def savepoint(session: LockingSession) -> object:
    session.begin_nested()
    return read(session)  # sends it


def commit(session: LockingSession) -> None:
    session.commit()


@pytest.mark.parametrize(
    "act", [read, execute, flush, lock_another, lock_a_set, lock_within, savepoint, commit]
)
def test_whatever_comes_next_says_so_and_nothing_follows_until_the_rollback(
    nodes: Nodes, two: LockingSession, abort: Abort, act: Act
) -> None:
    held = two.get_one_entity(Order, 1, ForUpdate)
    abort()
    with pytest.raises(DeadlockDetected) as caught:
        act(two)
    assert caught.value.retryable
    assert not two.held_locks
    if act is not commit:  # which SQLAlchemy takes for the end of it
        for escape in (execute, read, lock_another, commit):
            with pytest.raises(PendingRollbackError):
                escape(two)
    two.rollback()
    assert nodes.seen() == TEN_MORE
    assert two.get_one_entity(Order, 1, ForUpdate) is held
    assert held.total == 40


def test_what_was_written_before_is_gone_with_it(
    nodes: Nodes, two: LockingSession, abort: Abort
) -> None:
    two.get_one_entity(Order, 1, ForUpdate).total = 7
    two.flush()
    abort()
    with pytest.raises(DeadlockDetected):
        execute(two)
    two.rollback()
    two.commit()
    assert nodes.seen() == TEN_MORE


def rollback(session: LockingSession) -> None:
    session.rollback()


def release(session: LockingSession) -> None:
    session.release_locks()


def close(session: LockingSession) -> None:
    session.close()


@pytest.mark.parametrize("end", [rollback, release, close])
@pytest.mark.parametrize("lock", [ForUpdate, SharedRead])
def test_a_rollback_is_no_error(
    two: LockingSession, abort: Abort, end: Act, lock: LockOptions
) -> None:
    two.get_one_entity(Order, 1, lock)
    pid = two.scalar(sa.text("SELECT CONNECTION_ID()"))
    abort()
    end(two)
    assert not two.held_locks
    assert not two.in_transaction()
    assert two.get_one_entity(Order, 1, ForUpdate).total == 40
    assert two.scalar(sa.text("SELECT CONNECTION_ID()")) == pid  # it was not thrown away


@pytest.mark.only_on("galera")  # MySQL's ROLLBACK ends well
def test_a_plain_session_hears_of_it(there: sa.Engine, abort: Abort) -> None:
    with sa.orm.Session(there) as plain:
        plain.get_one(Order, 1, with_for_update=True)
        abort()
        with pytest.raises(sa.exc.OperationalError, match="1213"):
            plain.rollback()


def test_the_error_that_ends_a_block_comes_out(two: LockingSession, abort: Abort) -> None:
    def fail_under_lock() -> None:
        with two.locked(Order, 1):
            abort()
            raise LookupError

    with pytest.raises(LookupError):
        fail_under_lock()
    assert not two.in_transaction()


def test_a_block_of_begin_ends_well_after_a_read(two: LockingSession, abort: Abort) -> None:
    with two.locked(Order, 1, SharedRead) as order:
        abort()
        assert order.total == 30
    assert two.get_one_entity(Order, 1).total == 40


def test_a_savepoint_does_not_hide_it(nodes: Nodes, two: LockingSession, abort: Abort) -> None:
    """MySQL's SAVEPOINT would succeed, and what is written behind it would be committed."""
    order = two.get_one_entity(Order, 1, ForUpdate)
    abort()
    with pytest.raises(DeadlockDetected), two.begin_nested():
        order.total += 5
    with pytest.raises(PendingRollbackError):
        two.commit()
    two.rollback()
    assert nodes.seen() == TEN_MORE


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_the_end_of_a_savepoint_says_so(
    nodes: Nodes, two: LockingSession, abort: Abort, end: str
) -> None:
    two.get_one_entity(Order, 1, ForUpdate)
    inner = two.begin_nested()
    read(two)  # sends the SAVEPOINT
    abort()
    with pytest.raises(DeadlockDetected):
        getattr(inner, end)()
    assert not two.held_locks
    with pytest.raises(InvalidRequestError):
        execute(two)
    two.rollback()
    assert nodes.seen() == TEN_MORE


def test_a_savepoint_does_not_help(two: LockingSession, abort: Abort) -> None:
    two.get_one_entity(Order, 1, ForUpdate)
    inner = two.begin_nested()
    read(two)  # sends the SAVEPOINT
    abort()
    with pytest.raises(DeadlockDetected):
        execute(two)
    with pytest.raises(DeadlockDetected):
        inner.rollback()
    with pytest.raises(PendingRollbackError):
        execute(two)
    two.rollback()
    assert two.get_one_entity(Order, 1, ForUpdate).total == 40


def test_under_asyncio_too(nodes: Nodes, abort: Abort) -> None:
    url = for_asyncio(sa.make_url(nodes.second.url), "aiomysql")

    async def main() -> None:
        engine = create_async_engine(url)
        async with AsyncLockingSession(engine) as session:
            await session.get_one_entity(Order, 1, SharedRead)
            await asyncio.to_thread(abort)
            await session.release_locks()
            await session.get_one_entity(Order, 1, ForUpdate)
            await asyncio.to_thread(abort)
            with pytest.raises(DeadlockDetected):
                await session.commit()
        await engine.dispose()

    asyncio.run(main())
