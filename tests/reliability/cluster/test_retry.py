"""run_transaction over both nodes: no update is lost, as long as each one writes the header."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, run_transaction
from tests.integration.locking.steps import add_ten
from tests.reliability.cluster.nodes import Nodes
from tests.support.actors import PATIENCE

pytestmark = pytest.mark.filterwarnings("ignore::sa_doclock.ClusterLockWarning")

THREADS, TIMES = 2, 4  # threads on each node, and updates of each thread


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
