"""The order in which pytest-xdist's workers get the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

Work = Mapping[str, Mapping[str, bool]]


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # it is not typed
    """Gives the tests of a group to one worker, one group after another, the largest first.

    The markers of ``--dist loadgroup`` would do, but pytest 9.2 renamed the attribute that pytest-xdist 3.8
    writes them to.

    It forgets a finished test.  At each message from a worker, pytest-xdist counts the unfinished tests of
    its groups: with thousands of tests in one group, that took a third of the controller's time.
    """

    def __init__(self, config: pytest.Config, log: Producer, groups: Mapping[str, str]) -> None:
        """Take the group of each test, by test id; the workers add more later."""
        super().__init__(config, log)
        self._groups = groups
        self._places: dict[str, int] = {}

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        """Note the positions of the tests, which are the same for all workers."""
        super().add_node_collection(node, collection)
        self._places = {nodeid: place for place, nodeid in enumerate(collection)}

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        """Forget the test, and with the last test its group; give the worker more when few are left."""
        nodeid = self.registered_collections[node][item_index]
        group, work = self._groups[nodeid], self.assigned_work[node]
        del work[group][nodeid]
        if not work[group]:
            del work[group]
        self._reschedule(node)

    def _split_scope(self, nodeid: str) -> str:
        return self._groups[nodeid]

    def _pending_of(self, workload: Work) -> int:
        return sum(map(len, workload.values()))

    def _assign_work_unit(self, node: WorkerController) -> None:
        group, tests = self.workqueue.popitem(last=False)
        self.assigned_work[node][group] = tests
        node.send_runtest_some([self._places[nodeid] for nodeid in tests])
