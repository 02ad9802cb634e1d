"""claim_each on two nodes: a row may come up on both, and is committed once."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import DeadlockDetected, LockingSession, claim_each
from tests.reliability.cluster.nodes import Nodes
from tests.support.models import Ticket

pytestmark = pytest.mark.filterwarnings("ignore::sa_doclock.ClusterLockWarning")

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
    assert came_up == [1, 1, 2]  # what a block does outside of the database is done twice
    assert (on_one.report.processed, on_two.report.processed) == (1, 1)
    ((key, error),) = on_two.report.failed
    assert key == 1
    assert isinstance(error, DeadlockDetected)
    assert error.retryable
