"""The order in which the workers of pytest-xdist get the tests."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # it is not typed
    """Gives the tests of a group to one worker, one group after the other, the largest first.

    The markers of ``--dist loadgroup`` would do, if pytest 9.2 had not renamed the attribute that
    pytest-xdist 3.8 writes them to.
    """

    def __init__(self, config: pytest.Config, log: Producer, groups: Mapping[str, str]) -> None:
        """Take the groups of the tests by their ids; the workers add to them later."""
        super().__init__(config, log)
        self._groups = groups

    def _split_scope(self, nodeid: str) -> str:
        return self._groups[nodeid]
