"""Row locks are local to a node: who comes second on another node gets an error at its COMMIT."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from sa_doclock import DeadlockDetected, LockingSession, LockNotAvailable, LockOptions
from tests.integration.locking.steps import FIRST, TEN_MORE, add_ten, finds_held, roll_back
from tests.reliability.cluster.nodes import Nodes
from tests.support.models import Order

pytestmark = pytest.mark.filterwarnings("ignore::sa_doclock.ClusterLockWarning")

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
NoWait, SkipLocked = LockOptions.NoWait, LockOptions.SkipLocked


def test_both_nodes_grant_it_and_the_second_commit_fails(
    nodes: Nodes, one: LockingSession, two: LockingSession
) -> None:
    add_ten(one)
    add_ten(two)
    one.save_changes()
    nodes.catch_up()
    with pytest.raises(DeadlockDetected) as caught:
        two.save_changes()
    assert caught.value.retryable
    assert caught.value.entity is Order
    assert caught.value.ident == 1
    assert nodes.seen() == TEN_MORE
    assert not two.held_locks


def test_the_session_goes_on_with_what_the_other_has_written(
    nodes: Nodes, one: LockingSession, two: LockingSession
) -> None:
    kept = two.get_one_entity(Order, 1, ForUpdate)
    kept.total = 7
    two.flush()
    add_ten(one)
    one.save_changes()
    nodes.catch_up()
    with pytest.raises(DeadlockDetected):
        two.save_changes()
    two.rollback()
    assert two.get_one_entity(Order, 1, ForUpdate).total == 40
    assert kept.total == 40


@pytest.mark.parametrize("lock", [ForUpdate, SharedRead])
def test_nowait_is_granted_on_the_other_node(
    one: LockingSession, there: sa.Engine, here: sa.Engine, lock: LockOptions
) -> None:
    one.get_one_entity(Order, 1, ForUpdate)
    with LockingSession(here) as same_node, pytest.raises(LockNotAvailable):
        same_node.get_entity(Order, 1, lock | NoWait)
    with LockingSession(there) as other_node:
        assert not finds_held(lock=lock)(other_node)


def test_skip_locked_skips_nothing_of_the_other_node(
    one: LockingSession, two: LockingSession, here: sa.Engine
) -> None:
    def first_free(session: LockingSession) -> int:
        statement = session.entity_set(Order, ForUpdate | SkipLocked).order_by(Order.id).limit(1)
        found: Order = session.scalars(statement).one()
        return found.id

    assert first_free(one) == 1
    assert first_free(two) == 1
    with LockingSession(here) as same_node:
        assert first_free(same_node) == 2


def test_a_shared_read_keeps_no_writer_of_the_other_node_out(
    nodes: Nodes, one: LockingSession, two: LockingSession
) -> None:
    read = one.get_one_entity(Order, 1, SharedRead)
    add_ten(two)
    two.save_changes()
    nodes.catch_up()
    # It gets an error, and is not shown lines that are newer than the header.
    with pytest.raises(DeadlockDetected):
        read.lines  # noqa: B018
    roll_back(one)
    assert read.total == 40


def test_a_document_read_whole_before_stays_as_it_was(
    nodes: Nodes, one: LockingSession, two: LockingSession
) -> None:
    order = one.get_document(Order, 1, SharedRead)
    assert order is not None
    add_ten(two)
    two.save_changes()
    nodes.catch_up()
    assert (order.total, [line.value for line in order.lines]) == FIRST
    one.release_locks()
