"""The first lock on a node says that it is one; the servers of the other tests are silent."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from sa_doclock import ClusterLockWarning, LockingSession, LockNotAvailable, LockOptions
from sa_doclock.dialects import strategy_for
from tests.integration.locking.steps import recorded, save
from tests.support.databases import Database
from tests.support.models import Order

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
            session.get_one_entity(Order, 2, lock)  # a warning would be an error
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
# GET_LOCK is local to a node, and there is no COMMIT that fails: hence a warning of its own.


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
