"""The order in which the workers of pytest-xdist get the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

Work = Mapping[str, Mapping[str, bool]]


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # it is not typed
    """Gives the tests of a group to one worker, one group after the other, the largest first.

    The markers of ``--dist loadgroup`` would do, if pytest 9.2 had not renamed the attribute that
    pytest-xdist 3.8 writes them to.

    A test that has ended is forgotten.  pytest-xdist counts at each message of a worker which tests of its
    groups have not: with thousands of tests in one group, that was a third of what the controller did.
    """

    def __init__(self, config: pytest.Config, log: Producer, groups: Mapping[str, str]) -> None:
        """Take the groups of the tests by their ids; the workers add to them later."""
        super().__init__(config, log)
        self._groups = groups
        self._places: dict[str, int] = {}

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        """Note the places of the tests, which are the same at all workers."""
        super().add_node_collection(node, collection)
        self._places = {nodeid: place for place, nodeid in enumerate(collection)}

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        """Forget the test, and its group with the last one; give the worker more when it has few left."""
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
