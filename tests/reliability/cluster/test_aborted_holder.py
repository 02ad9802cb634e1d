"""A commit on another node ends a conflicting transaction here, which learns of it late.

The holder's next statement raises 1213, and so does its ROLLBACK.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import InvalidRequestError, PendingRollbackError
from sqlalchemy.ext.asyncio import create_async_engine

from sa_doclock import (
    AsyncLockingSession,
    ClusterLockWarning,
    DeadlockDetected,
    LockingSession,
    LockNotAvailable,
    LockOptions,
)
from sa_doclock.dialects import strategy_for
from tests.integration.asyncio.drivers import for_asyncio
from tests.integration.locking.steps import add_ten, recorded, save
from tests.reliability.cluster.conftest import Nodes
from tests.support.databases import Database
from tests.support.models import Customer, Line, Order

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
Act = Callable[[LockingSession], object]
Abort = Callable[[], None]


@pytest.fixture
def abort(nodes: Nodes, one: LockingSession) -> Abort:
    """Return a function that commits on the first node, and returns once the second node has the commit."""

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


@pytest.mark.filterwarnings("ignore::sa_doclock.ClusterLockWarning")
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
    if act is not commit:  # which SQLAlchemy treats as the end of the transaction
        for escape in (execute, read, lock_another, commit):
            with pytest.raises(PendingRollbackError):
                escape(two)
    two.rollback()
    assert nodes.seen() == (40, [20, 20])
    assert two.get_one_entity(Order, 1, ForUpdate) is held
    assert held.total == 40


@pytest.mark.filterwarnings("ignore::sa_doclock.ClusterLockWarning")
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
    assert nodes.seen() == (40, [20, 20])


def rollback(session: LockingSession) -> None:
    session.rollback()


def release(session: LockingSession) -> None:
    session.release_locks()


def close(session: LockingSession) -> None:
    session.close()


@pytest.mark.filterwarnings("ignore::sa_doclock.ClusterLockWarning")
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
    assert two.scalar(sa.text("SELECT CONNECTION_ID()")) == pid  # the pool did not discard it


@pytest.mark.filterwarnings("ignore::sa_doclock.ClusterLockWarning")
@pytest.mark.only_on("galera")  # MySQL's ROLLBACK succeeds
def test_a_plain_session_hears_of_it(there: sa.Engine, abort: Abort) -> None:
    with sa.orm.Session(there) as plain:
        plain.get_one(Order, 1, with_for_update=True)
        abort()
        with pytest.raises(sa.exc.OperationalError, match="1213"):
            plain.rollback()


@pytest.mark.filterwarnings("ignore::sa_doclock.ClusterLockWarning")
def test_the_error_that_ends_a_block_comes_out(two: LockingSession, abort: Abort) -> None:
    def fail_under_lock() -> None:
        with two.locked(Order, 1):
            abort()
            raise LookupError

    with pytest.raises(LookupError):
        fail_under_lock()
    assert not two.in_transaction()


@pytest.mark.filterwarnings("ignore::sa_doclock.ClusterLockWarning")
def test_a_block_of_begin_ends_well_after_a_read(two: LockingSession, abort: Abort) -> None:
    with two.locked(Order, 1, SharedRead) as order:
        abort()
        assert order.total == 30
    assert two.get_one_entity(Order, 1).total == 40


@pytest.mark.filterwarnings("ignore::sa_doclock.ClusterLockWarning")
def test_a_savepoint_does_not_hide_it(nodes: Nodes, two: LockingSession, abort: Abort) -> None:
    """MySQL's SAVEPOINT would succeed, and a later write would be committed."""
    order = two.get_one_entity(Order, 1, ForUpdate)
    abort()
    with pytest.raises(DeadlockDetected), two.begin_nested():
        order.total += 5
    with pytest.raises(PendingRollbackError):
        two.commit()
    two.rollback()
    assert nodes.seen() == (40, [20, 20])


@pytest.mark.filterwarnings("ignore::sa_doclock.ClusterLockWarning")
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
    assert nodes.seen() == (40, [20, 20])


@pytest.mark.filterwarnings("ignore::sa_doclock.ClusterLockWarning")
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


@pytest.mark.filterwarnings("ignore::sa_doclock.ClusterLockWarning")
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


# --------------------------------------------------------------------------------------------------
# The first lock on a cluster node warns; the servers of the other tests stay silent.

LOCKS = [LockOptions.ForUpdate, LockOptions.SharedRead]


@pytest.mark.parametrize("lock", LOCKS)
def test_once_for_each_engine(here: sa.Engine, there: sa.Engine, lock: LockOptions) -> None:
    for engine in (here, there):
        with LockingSession(engine) as session:
            with pytest.warns(
                ClusterLockWarning, match="a node of a (Galera cluster|group of several)"
            ) as caught:
                session.get_one_entity(Order, 1, lock)
            assert len(caught) == 1
            assert caught[0].filename == __file__
            session.get_one_entity(Order, 2, lock)  # a warning would raise
        with LockingSession(engine) as session:
            session.get_one_entity(Order, 1, lock)


def test_a_snapshot_needs_none(one: LockingSession) -> None:
    assert one.get_one_entity(Order, 1, LockOptions.SnapshotRead).total == 30


@pytest.mark.filterwarnings("ignore::sa_doclock.ClusterLockWarning")
def test_nothing_is_asked_for_it_on_the_way_to_a_lock(here: sa.Engine) -> None:
    strategy_for(here)
    with recorded(here) as statements, LockingSession(here) as session:
        session.get_one_entity(Order, 1, LockOptions.ForUpdate)
    assert not [
        text for text in statements if "wsrep" in text or "VARIABLES" in text or "group_" in text
    ]


@pytest.mark.databases("mysql", "mariadb")
def test_a_server_alone_is_no_node_of_a_cluster(database: Database) -> None:
    assert strategy_for(database.engine()).cluster is None


# --------------------------------------------------------------------------------------------------
# GET_LOCK is local to a node, and no COMMIT fails for it: hence its own warning.


def test_both_nodes_grant_a_key_and_say_so(one: LockingSession, two: LockingSession) -> None:
    for session in (one, two):
        with pytest.warns(ClusterLockWarning, match="named locks are local to the node"):
            session.lock_key("the key", lock_timeout=0)
    save(one)
    save(two)


@pytest.mark.filterwarnings("ignore::sa_doclock.ClusterLockWarning")
def test_on_one_node_it_keeps_others_out(one: LockingSession, here: sa.Engine) -> None:
    one.lock_key("the key")
    with LockingSession(here) as same_node, pytest.raises(LockNotAvailable):
        same_node.lock_key("the key", lock_timeout=0)
