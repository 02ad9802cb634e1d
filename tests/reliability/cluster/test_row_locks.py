"""Row locks are local to a node: the later writer on another node gets an error at its COMMIT."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import (
    DeadlockDetected,
    LockingSession,
    LockNotAvailable,
    LockOptions,
    claim_each,
    run_transaction,
)
from tests.integration.locking.steps import add_ten, finds_held, roll_back
from tests.reliability.cluster.conftest import Nodes
from tests.support.actors import PATIENCE
from tests.support.models import Order, Ticket

pytestmark = pytest.mark.filterwarnings("ignore::sa_doclock.ClusterLockWarning")

ForUpdate, SharedRead, NoWait, SkipLocked = (
    LockOptions.ForUpdate,
    LockOptions.SharedRead,
    LockOptions.NoWait,
    LockOptions.SkipLocked,
)


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
    assert nodes.seen() == (40, [20, 20])
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
    # The reader gets an error instead of lines that are newer than the header.
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
    assert (order.total, [line.value for line in order.lines]) == (30, [10, 20])
    one.release_locks()


# --------------------------------------------------------------------------------------------------
# claim_each() on two nodes: a row can come up on both, but commits once.

OPEN = sa.select(Ticket).where(Ticket.total > 0).order_by(Ticket.id)


def test_the_second_commit_is_a_failure_in_its_report(
    nodes: Nodes, here: sa.Engine, there: sa.Engine
) -> None:
    on_one = claim_each(sessionmaker(here, class_=LockingSession), OPEN, limit=1)
    on_two = claim_each(sessionmaker(there, class_=LockingSession), OPEN, on_error="collect")
    came_up = []
    for claim in on_two:
        with claim as ticket:
            came_up.append(ticket.id)
            if len(came_up) == 1:
                for same in on_one:
                    with same as twin:
                        came_up.append(twin.id)
                        twin.total = 0
                nodes.catch_up()
            ticket.total = 0
    assert came_up == [1, 1, 2]  # the block's effects outside the database happen twice
    assert (on_one.report.processed, on_two.report.processed) == (1, 1)
    ((key, error),) = on_two.report.failed
    assert key == 1
    assert isinstance(error, DeadlockDetected)
    assert error.retryable


# --------------------------------------------------------------------------------------------------
# A change of details alone, without the header, goes undetected: the trap and its fix.

LIMIT = 35
"""The highest sum of an order's lines, by a rule that its lock ought to protect."""


def five_more(session: LockingSession, number: int, remark: str | None = None) -> None:
    """Add 5 to one line, if the order's limit permits; do not commit."""
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
    nodes.catch_up()  # otherwise Group Replication may refuse it: both lines refer to one order
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
    nodes.catch_up()  # otherwise Group Replication may refuse it: both lines refer to one order
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


# --------------------------------------------------------------------------------------------------
# run_transaction() on both nodes does not lose an update, as long as each one writes the header.

THREADS, TIMES = 2, 4  # threads on each node, and updates per thread


def test_of_two_that_meet_one_is_run_again(nodes: Nodes, here: sa.Engine, there: sa.Engine) -> None:
    meeting = threading.Barrier(2)
    runs: list[int] = []

    def update(engine: sa.Engine) -> None:
        mine: list[int] = []

        def fn(session: LockingSession) -> None:
            add_ten(session)
            mine.append(1)
            if len(mine) == 1:
                meeting.wait(PATIENCE)

        run_transaction(sessionmaker(engine, class_=LockingSession), fn)
        runs.append(len(mine))

    at_the_same_time([lambda: update(here), lambda: update(there)])
    assert min(runs) == 1
    assert max(runs) > 1
    assert nodes.seen() == (50, [30, 20])


def test_many_lose_nothing(nodes: Nodes, here: sa.Engine, there: sa.Engine) -> None:
    def updates(engine: sa.Engine) -> Callable[[], None]:
        factory = sessionmaker(engine, class_=LockingSession)

        def run() -> None:
            for _ in range(TIMES):
                run_transaction(factory, add_ten, attempts=200, backoff=0.01, max_backoff=0.2)

        return run

    at_the_same_time([updates(engine) for engine in (here, there) for _ in range(THREADS)])
    added = 10 * 2 * THREADS * TIMES
    assert nodes.seen() == (30 + added, [10 + added, 20])


def at_the_same_time(functions: list[Callable[[], None]]) -> None:
    with ThreadPoolExecutor(len(functions)) as pool:
        for step in [pool.submit(function) for function in functions]:
            step.result()
