"""A change of details alone, without the header, is not detected: the trap, and its cure."""

from __future__ import annotations

import pytest

from sa_doclock import DeadlockDetected, LockingSession, LockOptions
from tests.reliability.cluster.nodes import Nodes
from tests.support.models import Order

pytestmark = pytest.mark.filterwarnings("ignore::sa_doclock.ClusterLockWarning")

LIMIT = 35
"""The highest sum of an order's lines, by a rule that its lock ought to protect."""


def five_more(session: LockingSession, number: int, remark: str | None = None) -> None:
    """Add 5 to one line, if the order's limit permits; not committed yet."""
    order = session.get_one_entity(Order, 1, LockOptions.ForUpdate)
    if sum(line.value for line in order.lines) + 5 <= LIMIT:
        order.lines[number].value += 5
        if remark is not None:
            order.remark = remark
    session.flush()


def test_both_commit_where_the_header_is_not_written(
    nodes: Nodes, one: LockingSession, two: LockingSession
) -> None:
    five_more(one, 0)
    five_more(two, 1)
    one.save_changes()
    nodes.catch_up()  # else Group Replication may refuse it: both lines refer to one order
    two.save_changes()
    total, values = nodes.seen()
    assert total == 30
    assert sum(values) > LIMIT


def test_nor_where_it_is_written_as_it_was(
    nodes: Nodes, one: LockingSession, two: LockingSession
) -> None:
    five_more(one, 0, remark="first")
    five_more(two, 1, remark="first")
    one.save_changes()
    nodes.catch_up()  # else Group Replication may refuse it: both lines refer to one order
    two.save_changes()
    assert sum(nodes.seen()[1]) > LIMIT


def test_a_header_that_changes_each_time_is_what_helps(
    nodes: Nodes, one: LockingSession, two: LockingSession
) -> None:
    five_more(one, 0, remark="by one")
    five_more(two, 1, remark="by two")
    one.save_changes()
    nodes.catch_up()
    with pytest.raises(DeadlockDetected):
        two.save_changes()
    two.rollback()
    five_more(two, 1, remark="by two")
    two.save_changes()
    assert nodes.seen() == (30, [15, 20])


def test_on_one_node_the_lock_is_enough(nodes: Nodes, one: LockingSession) -> None:
    five_more(one, 0)
    one.save_changes()
    with LockingSession(one.get_bind()) as same_node:
        five_more(same_node, 1)
        same_node.save_changes()
    assert nodes.seen() == (30, [15, 20])
