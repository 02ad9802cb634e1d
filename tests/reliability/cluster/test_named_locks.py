"""GET_LOCK is local to a node, and there is no COMMIT that fails: hence a warning of its own."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from sa_doclock import ClusterLockWarning, LockingSession, LockNotAvailable
from tests.integration.locking.steps import save


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
