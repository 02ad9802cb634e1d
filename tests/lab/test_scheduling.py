"""The tests of a group go to one worker; each test is handed out once, and again where a worker dies."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from xdist.remote import Producer

from lab.running.scheduling import GroupScheduling

GROUPS = {
    f"{group}{number}": group
    for group, tests in {"a": 3, "b": 4, "c": 5, "d": 6}.items()
    for number in range(tests)
}


class Worker:
    """Keeps what it is given."""

    shutting_down = False
    gateway = SimpleNamespace(id="gw")

    def __init__(self) -> None:
        self.given: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


@pytest.fixture
def workers() -> list[Any]:
    return [Worker(), Worker()]


@pytest.fixture
def scheduling(workers: list[Any]) -> GroupScheduling:
    """Begin to give the tests to two workers."""
    config: Any = SimpleNamespace(
        getvalue=lambda _: ["popen"] * len(workers), option=SimpleNamespace(loadscopereorder=True)
    )
    made = GroupScheduling(config, Producer("", enabled=False), GROUPS)
    for worker in workers:
        made.add_node(worker)
        made.add_node_collection(worker, [*GROUPS])
    made.schedule()
    return made


def run_all(scheduling: GroupScheduling, worker: Any, *, done: int = 0) -> list[str]:
    """Have a worker run what it is given, and return the names of it."""
    while done < len(worker.given):
        scheduling.mark_test_complete(worker, worker.given[done])
        done += 1
    return names(worker)


def names(worker: Any) -> list[str]:
    return [[*GROUPS][place] for place in worker.given]


def test_groups_are_handed_out_one_after_the_other_the_largest_first(
    scheduling: GroupScheduling, workers: list[Any]
) -> None:
    assert [names(worker)[0][0] for worker in workers] == ["d", "c"]
    assert scheduling.has_pending
    assert not scheduling.tests_finished
    done = [run_all(scheduling, worker) for worker in workers]
    assert sorted(itertools.chain(*done)) == sorted(GROUPS)
    assert all(len({GROUPS[name] for name in one}) < len(one) for one in done)
    assert scheduling.tests_finished
    assert not scheduling.has_pending
    assert all(worker.shutting_down for worker in workers)
    assert [scheduling.remove_node(worker) for worker in workers] == [None, None]


def test_what_a_worker_leaves_behind_is_run_by_another(
    scheduling: GroupScheduling, workers: list[Any]
) -> None:
    dying, other = workers
    scheduling.mark_test_complete(dying, dying.given[0])
    assert scheduling.remove_node(dying) == names(dying)[1]  # xdist reports that it has crashed
    assert not scheduling.tests_finished
    assert {*run_all(scheduling, other)} == {*GROUPS} - {names(dying)[0]}
